// Package testenv gives tests a piece of the machine of their own: network
// namespaces, and whole instances of the Trellis service in them.
//
// Nothing here is visible to, or depends on, the machine's own interfaces,
// names or services. Namespaces have no name and are held by the test process
// alone, so the kernel removes them even if the process is killed. Directories,
// and what a service makes, carry the process's id; [Start] removes what
// predecessors that are no longer alive have left.
package testenv

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// UnprivilegedVariable names the environment variable that has tests run as if by
// a user who is not root: those that need root are skipped.
const UnprivilegedVariable = "TRELLIS_TEST_UNPRIVILEGED"

// NeedRoot skips the test where it does not run as root, which it needs for the
// reason. As what needs root makes something of the machine's, it waits for tests that
// measure ([Measures]). A parallel test calls t.Parallel first: while it waits for its
// turn it would keep others waiting.
func NeedRoot(t testing.TB, reason string) {
	t.Helper()
	needRoot(t, reason)
	share(t)
}

func needRoot(t testing.TB, reason string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: " + reason)
	}
	if os.Getenv(UnprivilegedVariable) != "" {
		t.Skipf("needs root, and %s is set: %s", UnprivilegedVariable, reason)
	}
}

// NeedCommand skips the test where one of the programs is not installed.
func NeedCommand(t testing.TB, names ...string) {
	t.Helper()
	for _, name := range names {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("needs the program %s: install the packages that scripts/packages lists", name)
		}
	}
}

// Run runs a command and returns what it wrote to standard output, without the
// last newline. It ends the test where the command fails.
func Run(t testing.TB, cmd *exec.Cmd) string {
	t.Helper()
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s%s", strings.Join(cmd.Args, " "), err, stdout.String(), stderr.String())
	}
	return strings.TrimSuffix(stdout.String(), "\n")
}

// Debian13 gives the image of Debian 13 with its FRR and BIRD, which
// scripts/debian13-image makes; without it the test is skipped.
func Debian13(t testing.TB) string {
	t.Helper()
	NeedRoot(t, "nodes of another system")
	root := os.Getenv("TRELLIS_TEST_DEBIAN13")
	if root == "" {
		root = "/var/cache/trellis-test/debian13"
	}
	if _, err := os.Stat(filepath.Join(root, ".made")); err != nil {
		t.Skipf("needs a root of Debian 13, which `make deps-test` makes as root (scripts/debian13-image): %v", err)
	}
	return root
}
