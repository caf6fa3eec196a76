package pip

import "sync"

// nameLocks serialises requests by VNet name. The zero value is ready.
type nameLocks struct {
	mu    sync.Mutex
	locks map[string]*nameLock
}

type nameLock struct {
	mu   sync.Mutex
	uses int // holders and waiters
}

// lock waits for the name and returns what gives it free.
func (l *nameLocks) lock(name string) (unlock func()) {
	l.mu.Lock()
	if l.locks == nil {
		l.locks = map[string]*nameLock{}
	}
	n := l.locks[name]
	if n == nil {
		n = &nameLock{}
		l.locks[name] = n
	}
	n.uses++
	l.mu.Unlock()
	n.mu.Lock()
	return func() {
		n.mu.Unlock()
		l.mu.Lock()
		defer l.mu.Unlock()
		if n.uses--; n.uses == 0 {
			delete(l.locks, name)
		}
	}
}
