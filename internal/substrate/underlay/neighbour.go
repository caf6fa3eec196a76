package underlay

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"trellis/internal/substrate/rtnl"
	"trellis/internal/vnet"
)

// Protocol marks the neighbours that are kept resolved for Trellis
// (NDA_PROTOCOL), as netns.Protocol marks what it places inside nodes.
const Protocol = 116

// hop is a next hop.
type hop struct {
	index int // of the interface
	addr  netip.Addr
}

// usable states have an address to send to (NUD_VALID, net/neighbour.h).
const usable = unix.NUD_PERMANENT | unix.NUD_NOARP | unix.NUD_REACHABLE | unix.NUD_PROBE | unix.NUD_STALE | unix.NUD_DELAY

// Failures of resolve, to follow the words "… the next hop to …,".
var (
	errSilent  = errors.New("does not answer")
	errUnasked = errors.New("has not answered yet")
)

// resolve gives the hop's hardware address, and asks the kernel to find it out
// and to keep it, unless it does already.
func (u *Underlay) resolve(h hop) (vnet.MAC, error) {
	n, err := u.neighbour(h)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return vnet.MAC{}, fmt.Errorf("cannot be looked up: %w", err)
	}
	// A permanent entry is the administrator's; to use it would make it another.
	if n.State&unix.NUD_PERMANENT == 0 && !n.Managed {
		if err := u.setManaged(h, true); err != nil {
			return vnet.MAC{}, fmt.Errorf("cannot be asked for its address: %w", err)
		}
	}
	u.hops[h] = u.hops[h] || n.State&unix.NUD_FAILED != 0
	switch {
	case n.State&usable != 0 && n.MAC != [6]byte{}:
		u.hops[h] = false
		return n.MAC, nil
	case n.State&unix.NUD_FAILED != 0:
		// A managed entry that has failed is tried again by the kernel, but only
		// every few seconds.
		if err := u.setManaged(h, true); err != nil {
			return vnet.MAC{}, fmt.Errorf("cannot be asked for its address: %w", err)
		}
	}
	if u.hops[h] {
		return vnet.MAC{}, errSilent
	}
	return vnet.MAC{}, errUnasked
}

// neighbour reads the kernel's entry; ENOENT: there is none.
func (u *Underlay) neighbour(h hop) (rtnl.Neighbour, error) {
	var b rtnl.Batch
	b.Begin(unix.RTM_GETNEIGH, 0, rtnl.NeighbourHeader(rtnl.Family(h.addr), h.index, 0))
	b.Bytes(unix.NDA_DST, h.addr.AsSlice())
	body, err := u.conn.Get(&b)
	if err != nil {
		return rtnl.Neighbour{}, err
	}
	n, ok := rtnl.ParseNeighbour(body)
	if !ok {
		return n, unix.EBADMSG
	}
	return n, nil
}

// setManaged has the kernel resolve a neighbour, and keep it resolved from now on or
// no more.
func (u *Underlay) setManaged(h hop, keep bool) error {
	var b rtnl.Batch
	flags := uint16(unix.NLM_F_REPLACE)
	if keep {
		flags |= unix.NLM_F_CREATE
	}
	b.Begin(unix.RTM_NEWNEIGH, flags, rtnl.NeighbourHeader(rtnl.Family(h.addr), h.index, unix.NTF_USE))
	b.Bytes(unix.NDA_DST, h.addr.AsSlice())
	if keep {
		b.Uint8(rtnl.NDAProtocol, Protocol)
		b.Uint32(rtnl.NDAFlagsExt, rtnl.ExtManaged)
	} else {
		b.Uint8(rtnl.NDAProtocol, unix.RTPROT_KERNEL)
	}
	failed, err := u.conn.Execute(&b)
	if err == nil && len(failed) > 0 {
		err = failed[0].Err
	}
	return err
}

// releaseUnused lets go of the neighbours that no route leads by any more.
func (u *Underlay) releaseUnused(wanted map[hop]bool) error {
	var errs []error
	for h := range u.hops {
		if wanted[h] {
			continue
		}
		n, err := u.neighbour(h)
		if err == nil && n.Managed && n.Protocol == Protocol {
			err = u.setManaged(h, false)
		}
		if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENODEV) {
			errs = append(errs, err)
			continue
		}
		delete(u.hops, h)
	}
	return errors.Join(errs...)
}

// adoptHops finds the neighbours that a predecessor had kept resolved.
func (u *Underlay) adoptHops() error {
	return u.conn.Dump(unix.RTM_GETNEIGH, rtnl.NeighbourHeader(unix.AF_UNSPEC, 0, 0), nil, func() { clear(u.hops) }, func(body []byte) error {
		if n, ok := rtnl.ParseNeighbour(body); ok && n.Managed && n.Protocol == Protocol {
			u.hops[hop{n.Index, n.Addr}] = false
		}
		return nil
	})
}

// hopRelevant tells whether a neighbour is a next hop in use.
func (u *Underlay) hopRelevant(body []byte) bool {
	n, ok := rtnl.ParseNeighbour(body)
	if !ok {
		return false
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	_, ok = u.hops[hop{n.Index, n.Addr}]
	return ok
}
