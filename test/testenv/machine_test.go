package testenv

import (
	"sync/atomic"
	"testing"
	"time"
)

// Two locks on the same files are two processes.
func TestWhoMeasuresIsAlone(t *testing.T) {
	dir := t.TempDir()
	var sharing, alone atomic.Int32
	t.Run("all", func(t *testing.T) {
		for i := range 12 {
			m := newMachineLock(dir)
			measures := i%3 == 0
			t.Run("part", func(t *testing.T) {
				t.Parallel()
				m.take(t, measures)
				n, k := &sharing, &alone
				if measures {
					n, k = k, n
				}
				if have := n.Add(1); measures && have > 1 {
					t.Errorf("%d measure", have)
				}
				if other := k.Load(); measures && other > 0 || !measures && other > 0 {
					t.Errorf("beside it run %d of the other kind", other)
				}
				m.take(t, false) // a part of it, or a helper, has what it has
				time.Sleep(time.Millisecond)
				n.Add(-1)
			})
		}
	})
}

func TestWhoWaitsFirstIsFirst(t *testing.T) {
	dir := t.TempDir()
	lock := func() *machineLock { return newMachineLock(dir) }
	first, err := lock().wait(false)
	if err != nil {
		t.Fatal(err)
	}
	order := make(chan string, 2)
	queue := func(what string, alone bool) {
		f, err := lock().wait(alone)
		if err != nil {
			t.Error(err)
			return
		}
		order <- what
		f.Close()
	}
	go queue("measures", true)
	time.Sleep(50 * time.Millisecond) // it waits, or will a moment later: then the test shows less
	go queue("shares", false)
	select {
	case what := <-order:
		t.Fatalf("what %s does not wait", what)
	case <-time.After(50 * time.Millisecond):
	}
	first.Close()
	if a, b := <-order, <-order; a != "measures" || b != "shares" {
		t.Errorf("the order is %s, %s", a, b)
	}
}
