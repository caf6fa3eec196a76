package container

import (
	"errors"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// A number of a process that has ended may be given to a thread, of which there are
// no pidfds. A service that finds one in a record must start nevertheless.
func TestNumberThatIsAThreadsNow(t *testing.T) {
	tid, done := make(chan int), make(chan struct{})
	defer close(done)
	for range 2 { // one of them is not the first thread
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			tid <- unix.Gettid()
			<-done
		}()
	}
	for range 2 {
		pid := <-tid
		if pid == os.Getpid() {
			continue
		}
		boot, err := bootID()
		if err != nil {
			t.Fatal(err)
		}
		if fd, err := (&record{Boot: boot, Pid: pid, StartTicks: 1}).pidfd(); !errors.Is(err, unix.ESRCH) {
			t.Errorf("the thread %d has the pidfd %d, %v", pid, fd, err)
		}
	}
}
