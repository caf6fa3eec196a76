package netns

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"trellis/internal/substrate/rtnl"
)

// Links gives the node's devices. Those that the platform has made, loopback aside, are
// the ones whose peer lies elsewhere: nobody in a node can make one of those, since no
// other namespace is there for him.
func (n *NS) Links() ([]rtnl.Link, error) {
	c, err := n.dial()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	links, err := c.Links()
	if err != nil {
		return nil, fmt.Errorf("read a node's interfaces: %w", err)
	}
	return links, nil
}

// SetDown sets devices down, in that order. One that is gone is fine.
func (n *NS) SetDown(indices ...int) error {
	c, err := n.dial()
	if err != nil {
		return err
	}
	defer c.Close()
	var b rtnl.Batch
	for _, i := range indices {
		b.Begin(unix.RTM_SETLINK, 0, rtnl.LinkHeader(i, 0, unix.IFF_UP))
	}
	if b.Len() == 0 {
		return nil
	}
	failed, err := c.Execute(&b)
	if err != nil {
		return fmt.Errorf("set a node's interfaces down: %w", err)
	}
	for _, f := range failed {
		if !errors.Is(f.Err, unix.ENODEV) {
			return fmt.Errorf("set the interface %d of a node down: %w", indices[f.Index], f.Err)
		}
	}
	return nil
}

// AwaitCarrierLoss waits, so long at most, until the namespace's programs have been told
// that an interface has lost its carrier: the kernel tells them later
// (net/core/link_watch.c), and nothing at all if the carrier is back by then. One that
// is not there, or not up, is not waited for.
func (n *NS) AwaitCarrierLoss(name string, patience time.Duration) error {
	c, err := n.dial()
	if err != nil {
		return err
	}
	defer c.Close()
	for deadline := time.Now().Add(patience); ; time.Sleep(2 * time.Millisecond) {
		l, err := c.Link(0, name)
		switch {
		case errors.Is(err, unix.ENODEV):
			return nil
		case err != nil:
			return err
		case l.Flags&unix.IFF_RUNNING == 0 || time.Now().After(deadline):
			return nil
		}
	}
}
