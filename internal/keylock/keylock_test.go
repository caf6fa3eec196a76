package keylock

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"
)

func TestANameIsHeldByOne(t *testing.T) {
	var l Locks[string]
	var all sync.WaitGroup
	count := 0
	for range 50 {
		all.Go(func() {
			unlock, err := l.Lock(t.Context(), "a")
			if err != nil {
				t.Error(err)
				return
			}
			defer unlock()
			was := count
			time.Sleep(10 * time.Microsecond)
			count = was + 1
		})
	}
	all.Wait()
	if count != 50 {
		t.Errorf("%d of 50 were alone", count)
	}
	if len(l.locks) != 0 {
		t.Errorf("%d locks stay behind", len(l.locks))
	}
}

func TestOtherNamesAreFree(t *testing.T) {
	var l Locks[string]
	for _, name := range []string{"a", "b"} {
		unlock, err := l.Lock(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		defer unlock()
	}
}

func TestAWaitEndsWithItsContext(t *testing.T) {
	var l Locks[string]
	unlock, err := l.Lock(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	why := errors.New("enough")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Millisecond, why)
	defer cancel()
	if _, err := l.Lock(ctx, "a"); !errors.Is(err, why) {
		t.Errorf("the wait ended with %v", err)
	}
	unlock()
	unlock, err = l.Lock(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	unlock()
	if len(l.locks) != 0 {
		t.Errorf("%d locks stay behind", len(l.locks))
	}
}
