package probe

import (
	"fmt"
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// entering lets one goroutine at a time hold a thread of its own: opening a
// socket takes microseconds, a thread for each of hundreds would cost more.
var entering sync.Mutex

// inside runs f on a thread that is in the network namespace ns, a file
// descriptor. The thread goes back to where it was; one that cannot go back is
// ended with its goroutine, so that no other goroutine ever runs on it.
func inside(ns int, f func() error) error {
	entering.Lock()
	defer entering.Unlock()
	failed := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		home, err := os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()))
		if err != nil {
			runtime.UnlockOSThread()
			failed <- fmt.Errorf("remember the own network namespace: %w", err)
			return
		}
		defer home.Close()
		if err := unix.Setns(ns, unix.CLONE_NEWNET); err != nil {
			runtime.UnlockOSThread()
			failed <- fmt.Errorf("enter the node's network namespace: %w", err)
			return
		}
		err = f()
		if back := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); back == nil {
			runtime.UnlockOSThread()
		}
		failed <- err
	}()
	return <-failed
}
