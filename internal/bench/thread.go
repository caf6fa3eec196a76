package bench

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// OnThread runs fn in a goroutine on a thread of its own, which ends with it,
// together with the namespaces that fn has given it. That thread is never the
// process's first one: the runtime cannot end that, and it would keep the
// namespaces, and show them in /proc/PID, for as long as the process runs.
func OnThread(fn func()) {
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() != unix.Getpid() {
			fn() // stays locked, so the thread ends with the goroutine
			return
		}
		// While this goroutine holds the first thread, the next one gets another.
		moved := make(chan struct{})
		OnThread(func() {
			close(moved)
			fn()
		})
		<-moved
		runtime.UnlockOSThread()
	}()
}
