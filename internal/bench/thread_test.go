package bench

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestOnThreadNeverTakesTheFirstThreadAndEndsItsOwn(t *testing.T) {
	tids := make(chan int)
	for range 200 {
		OnThread(func() { tids <- unix.Gettid() })
	}
	for range 200 {
		tid := <-tids
		if tid == os.Getpid() {
			t.Fatal("it ran on the process's first thread")
		}
		for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
			if _, err := os.Stat(fmt.Sprintf("/proc/self/task/%d", tid)); errors.Is(err, os.ErrNotExist) {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("the thread %d is still there", tid)
			}
		}
	}
}
