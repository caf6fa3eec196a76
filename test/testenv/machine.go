package testenv

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// Measures has the test run alone on this machine: no other test, of whatever package
// or run, that makes namespaces, services or sandboxes runs meanwhile. For tests of
// rates, times, orders and costs, and of what the whole machine has one of. It is the
// first line of such a test, and skips it where it does not run as root. The test, and
// subtests of it, are not parallel.
func Measures(t testing.TB) {
	t.Helper()
	needRoot(t, "measures, and has the machine to itself")
	machine.take(t, true)
}

// share has the test run beside others that share the machine, and not beside one that
// measures.
func share(t testing.TB) {
	t.Helper()
	machine.take(t, false)
}

// machine is the machine that all tests run on, of every process of this user's.
var machine = newMachineLock(os.TempDir())

// machineLock is shared by many, or one's alone. Whoever waits first is first: what
// measures would otherwise wait for ever. The kernel gives the lock back with the
// process, however it ends.
type machineLock struct {
	lock string // file, locked while a test has the machine
	turn string // file, locked while a test waits for the other

	mu      sync.Mutex
	holders map[string]*holder // by the name of the test that is no part of another
}

// holder is a test that has the machine, with all of its parts.
type holder struct {
	ready chan struct{} // closed when it has it
	parts int           // that need it yet
	alone bool
	file  *os.File
	err   error
}

func newMachineLock(dir string) *machineLock {
	return &machineLock{
		lock: filepath.Join(dir, "trellis-test.lock"), turn: filepath.Join(dir, "trellis-test.turn"),
		holders: map[string]*holder{},
	}
}

// take waits until the test has the machine, which it has until its end. A part of a
// test that has it takes no lock of its own: it would wait for what waits for it.
func (m *machineLock) take(t testing.TB, alone bool) {
	t.Helper()
	name, _, _ := strings.Cut(t.Name(), "/")
	m.mu.Lock()
	h := m.holders[name]
	first := h == nil
	if first {
		h = &holder{ready: make(chan struct{}), alone: alone}
		m.holders[name] = h
	}
	h.parts++
	m.mu.Unlock()
	t.Cleanup(func() { m.give(name, h) })
	if first {
		h.file, h.err = m.wait(alone)
		close(h.ready)
	}
	<-h.ready
	switch {
	case h.err != nil:
		t.Fatalf("wait for the machine: %v", h.err)
	case alone && !h.alone:
		t.Fatal("testenv.Measures is the first line of a test")
	}
}

// give ends what take began; the last part unlocks.
func (m *machineLock) give(name string, h *holder) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if h.parts--; h.parts > 0 {
		return
	}
	delete(m.holders, name)
	if h.file != nil {
		h.file.Close()
	}
}

// wait queues, and gives the open file that holds the lock.
func (m *machineLock) wait(alone bool) (_ *os.File, err error) {
	turn, err := openLock(m.turn)
	if err != nil {
		return nil, err
	}
	defer turn.Close()
	if err := flock(turn, unix.LOCK_EX); err != nil {
		return nil, err
	}
	lock, err := openLock(m.lock)
	if err != nil {
		return nil, err
	}
	how := unix.LOCK_SH
	if alone {
		how = unix.LOCK_EX
	}
	if err := flock(lock, how); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return lock, nil
}

func openLock(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
}

// flock locks, whatever signals come meanwhile.
func flock(f *os.File, how int) error {
	for {
		if err := unix.Flock(int(f.Fd()), how); !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("flock "+f.Name(), err)
		}
	}
}
