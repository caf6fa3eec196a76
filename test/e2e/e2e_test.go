// Package e2e tests Trellis as a user meets it: through the command line,
// against a service of its own in a network namespace of its own.
package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"trellis/test/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// write puts text into a file of the test's own and returns its path.
func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// decode reads a verb's JSON.
func decode[T any](t *testing.T, text string) T {
	t.Helper()
	var v T
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("not JSON: %v\n%s", err, text)
	}
	return v
}

// eventually repeats a check until it holds.
func eventually(t *testing.T, within time.Duration, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(within); !holds(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %v", what, within)
		}
	}
}

// needFRR skips the test where FRR is not installed; its daemons are not in PATH.
func needFRR(t *testing.T) {
	t.Helper()
	if _, err := os.Stat("/usr/lib/frr/zebra"); err != nil {
		t.Skip("needs FRR: install the packages that scripts/packages lists")
	}
}

// nothingLeft fails the test if the service has anything that it did not have
// when it was new.
func nothingLeft(t *testing.T, s *testenv.Service) {
	t.Helper()
	for _, what := range s.Leftovers() {
		t.Errorf("left behind: %s", what)
	}
}

// ping is the JSON of `trellis ping`.
type ping struct {
	Pairs, Reachable int
	Failed           []struct{ From, To, Family, Reason string }
}

// shown is what the tests use of the JSON of `trellis show VNET`.
type shown struct {
	Name, State string
	Message     string
	Nodes       []struct {
		Name, State, Message string
		Host, FastPath       string
		PID                  int
		Restarts             int
		Loopbacks            []string
	}
	Links []shownLink
}

// shownLink is one of its links.
type shownLink struct {
	Name, State, Message string
	Ends                 []struct {
		Node, Name, Device string
		MTU                int
		Addrs              []string
		Paths              []struct {
			Peer, Remote, State, Message string
			Key                          uint32
			MTU                          int
		}
	}
}
