// Package keylock serialises work by key. A wait for a key ends with its
// context, so that nobody queues behind work that hangs for longer than it is
// ready to.
package keylock

import (
	"context"
	"sync"
)

// Locks holds one lock for each key that is locked or waited for. The zero
// value is ready.
type Locks[K comparable] struct {
	mu    sync.Mutex
	locks map[K]*lock
}

type lock struct {
	held chan struct{} // has room for one: the holder's
	uses int           // holders and waiters; under Locks.mu
}

// Lock waits for the key, and returns what unlocks it. Its error is the cause of
// the context's end.
func (l *Locks[K]) Lock(ctx context.Context, key K) (unlock func(), err error) {
	l.mu.Lock()
	if l.locks == nil {
		l.locks = map[K]*lock{}
	}
	n := l.locks[key]
	if n == nil {
		n = &lock{held: make(chan struct{}, 1)}
		l.locks[key] = n
	}
	n.uses++
	l.mu.Unlock()
	select {
	case n.held <- struct{}{}:
	case <-ctx.Done():
		l.release(key, n)
		return nil, context.Cause(ctx)
	}
	return func() {
		<-n.held
		l.release(key, n)
	}, nil
}

func (l *Locks[K]) release(key K, n *lock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n.uses--; n.uses == 0 {
		delete(l.locks, key)
	}
}
