package netns

import (
	"errors"
	"os"
	"slices"
	"testing"
	"time"

	"trellis/test/testenv"
)

// A node whose routes could not be read for a while is told of, and what there is
// once they can be; and a route that comes while they are read is not overlooked.
func TestMTUWatchThatFailsIsTriedAgain(t *testing.T) {
	testenv.NeedRoot(t, "opens the namespace of a socket")
	e, err := NewRouteEvents()
	if err != nil {
		t.Fatal(err)
	}
	own, err := os.Open("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	var w *MTUWatch
	made, read := make(chan struct{}), 0
	e.routeMTU = func(*NS) (bool, error) {
		switch read++; read {
		case 1:
			return false, errors.New("too many open files")
		case 2:
			<-made
			w.mu.Lock()
			w.came = true
			w.mu.Unlock()
		}
		return false, nil
	}
	told := make(chan string, 100)
	w, err = e.WatchMTU(&NS{fd: int(own.Fd())}, func(has bool, err error) {
		switch {
		case err != nil:
			told <- err.Error()
		case has:
			told <- "has"
		default:
			told <- "has none"
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	close(made)
	var got []string
	want := []string{"too many open files", "has", "has none"}
	for range want {
		select {
		case s := <-told:
			got = append(got, s)
		case <-time.After(10 * time.Second):
			t.Fatalf("told %q, and then nothing", got)
		}
	}
	w.Close()
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	if !slices.Equal(got, want) {
		t.Errorf("told %q, want %q", got, want)
	}
}
