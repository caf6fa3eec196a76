// Package netns works in the network namespaces of virtual nodes: it sets and
// reads their interfaces, addresses and routes.
//
// A node's root may do there what it likes. So Trellis marks what it places,
// addresses and routes, with a protocol number of its own ([Protocol]), changes
// nothing that lacks the mark, and trusts nothing that it reads to be what it
// set.
package netns

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"

	"trellis/internal/substrate/rtnl"
)

// Protocol marks the addresses (IFA_PROTO, kernel 5.18, commit 47f0bd503210)
// and routes (rtm_protocol) that Trellis places. It is free in iproute2's
// rt_protos and rt_addrprotos, where `proto 116` shows and selects them.
const Protocol = 116

// NS is an open network namespace.
type NS struct {
	fd int
}

// OfPid opens the network namespace of a process. It refuses the caller's own:
// that is the machine's, which no node's set-up may touch. If the process ends
// meanwhile the error is ESRCH or ENOENT.
func OfPid(pid int) (*NS, error) {
	path := "/proc/" + strconv.Itoa(pid) + "/ns/net"
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open the network namespace of process %d: %w", pid, err)
	}
	n := &NS{fd: fd}
	own, err := n.isCallers()
	if err == nil && own {
		err = errors.New("it shares the caller's own; a node must have one of its own")
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open the network namespace of process %d: %w", pid, err), n.Close())
	}
	return n, nil
}

// OfThread opens the network namespace of the calling thread: the root context's.
func OfThread() (*NS, error) {
	fd, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open the thread's network namespace: %w", err)
	}
	return &NS{fd: fd}, nil
}

func (n *NS) isCallers() (bool, error) {
	var own, other unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &own); err != nil {
		return false, err
	}
	if err := unix.Fstat(n.fd, &other); err != nil {
		return false, err
	}
	return own.Dev == other.Dev && own.Ino == other.Ino, nil
}

// Close closes the namespace's descriptor. Closing again does nothing: the number may
// be another descriptor's by then.
func (n *NS) Close() error {
	if n.fd < 0 {
		return nil
	}
	defer func() { n.fd = -1 }()
	return os.NewSyscallError("close a network namespace", unix.Close(n.fd))
}

// FD gives the namespace's descriptor, which n owns.
func (n *NS) FD() int { return n.fd }

// Do calls fn on an OS thread inside the namespace. A thread that cannot be put
// back where it was is never used again.
func (n *NS) Do(fn func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		home, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			result <- fmt.Errorf("remember the thread's network namespace: %w", err)
			runtime.UnlockOSThread()
			return
		}
		defer unix.Close(home)
		if err := unix.Setns(n.fd, unix.CLONE_NEWNET); err != nil {
			result <- fmt.Errorf("enter a network namespace: %w", err)
			runtime.UnlockOSThread()
			return
		}
		err = fn()
		// A goroutine that ends locked takes its thread along.
		if unix.Setns(home, unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
		result <- err
	}()
	return <-result
}

// dial opens a netlink socket in the namespace.
func (n *NS) dial() (c *rtnl.Conn, err error) {
	err = n.Do(func() error {
		c, err = rtnl.Dial()
		return err
	})
	return c, err
}
