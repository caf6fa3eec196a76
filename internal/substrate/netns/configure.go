package netns

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"trellis/internal/substrate/rtnl"
	"trellis/internal/substrate/sysctl"
)

// Configure converges the interior: lo up with its addresses, and each wanted
// interface with its sysctls, MAC address, MTU, state and addresses. Addresses that
// Trellis placed and that are no longer wanted go; a tenant's own stay, and so
// do interfaces that are not wanted, which are their ports' business. changed
// counts the changes but for the sysctls, which are written each time, and before
// anything else, so that nothing happens by the values that they had.
func (n *NS) Configure(want Interior) (changed int, err error) {
	c, err := n.dial()
	if err != nil {
		return 0, err
	}
	defer c.Close()
	is, err := inspect(c)
	if err != nil {
		return 0, err
	}
	var s steps
	lo := Interface{Name: loopback, Up: true, Addrs: want.Loopbacks}
	if err := s.converge(is, &lo); err != nil {
		return 0, err
	}
	for k := range want.Interfaces {
		if err := s.converge(is, &want.Interfaces[k]); err != nil {
			return 0, err
		}
	}
	if err := n.setInterfaceSysctls(want.Interfaces); err != nil {
		return 0, err
	}
	failed, err := c.Execute(&s.batch)
	if err != nil {
		return 0, fmt.Errorf("set up a node's interfaces: %w", err)
	}
	var errs []error
	for _, f := range failed {
		errs = append(errs, fmt.Errorf("%s: %w", s.what[f.Index], f.Err))
	}
	return s.batch.Len() - len(failed), errors.Join(errs...)
}

// setInterfaceSysctls sets what interfaces have of sysctls. Each is the interface's own,
// and goes with it.
func (n *NS) setInterfaceSysctls(interfaces []Interface) error {
	if !slices.ContainsFunc(interfaces, func(i Interface) bool { return len(i.Sysctls) > 0 }) {
		return nil
	}
	return n.Do(func() (err error) {
		own, err := sysctl.Open()
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, own.Close()) }()
		for k := range interfaces {
			if err := setSysctls(own, interfaces[k].Sysctls); err != nil {
				return err
			}
		}
		return nil
	})
}

// steps are requests, each with the words for its failure.
type steps struct {
	batch rtnl.Batch
	what  []string
}

func (s *steps) note(format string, args ...any) {
	s.what = append(s.what, fmt.Sprintf(format, args...))
}

// converge appends what leads from the namespace as it is to the interface as
// it is wanted. A MAC of zero and an MTU of 0 are left as they are.
func (s *steps) converge(is *inside, want *Interface) error {
	at := slices.IndexFunc(is.links, func(l rtnl.Link) bool { return l.Name == want.Name })
	if at < 0 {
		return fmt.Errorf("the node has no interface %s: it was renamed or deleted inside, or its port is gone", want.Name)
	}
	have := &is.links[at]
	set := func() { s.batch.Begin(unix.RTM_SETLINK, 0, rtnl.LinkHeader(have.Index, 0, 0)) }
	if !want.MAC.IsZero() && want.MAC != have.MAC {
		set()
		s.batch.Bytes(unix.IFLA_ADDRESS, want.MAC[:])
		s.note("set the MAC address of %s to %v", want.Name, want.MAC)
	}
	if want.MTU != 0 && want.MTU != have.MTU {
		set()
		s.batch.Uint32(unix.IFLA_MTU, uint32(want.MTU))
		s.note("set the MTU of %s to %d", want.Name, want.MTU)
	}
	// First up, then addresses: when an interface with IPv6 addresses goes up, the
	// kernel adds their routes from memory that must not be waited for, and drops
	// the addresses where there is none.
	if want.Up != have.Up() {
		var flags uint32
		if want.Up {
			flags = unix.IFF_UP
		}
		s.batch.Begin(unix.RTM_SETLINK, 0, rtnl.LinkHeader(have.Index, flags, unix.IFF_UP))
		s.note("set the state of %s", want.Name)
	}
	s.addresses(is, have.Index, want)
	return nil
}

// addresses appends the removals, then the additions. An address that is there
// without our mark, because the tenant or the kernel set it, is taken over: it
// must go and come again, since the kernel does not change the mark.
func (s *steps) addresses(is *inside, index int, want *Interface) {
	ours := map[netip.Prefix]bool{}
	for _, a := range is.addresses {
		if a.index != index {
			continue
		}
		wanted := slices.Contains(want.Addrs, a.prefix)
		switch {
		case a.ours && wanted:
			ours[a.prefix] = true
		case a.ours != wanted:
			s.address(unix.RTM_DELADDR, 0, index, a.prefix)
			s.note("remove the address %v from %s", a.prefix, want.Name)
		}
	}
	for _, p := range want.Addrs {
		if !ours[p] {
			s.address(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, index, p)
			s.note("add the address %v to %s", p, want.Name)
		}
	}
}

func (s *steps) address(typ, flags uint16, index int, p netip.Prefix) {
	h := unix.IfAddrmsg{Family: unix.AF_INET, Prefixlen: uint8(p.Bits()), Index: uint32(index)}
	if p.Addr().Is6() {
		h.Family, h.Flags = unix.AF_INET6, unix.IFA_F_NODAD
	} else if p.Addr().IsLoopback() {
		h.Scope = unix.RT_SCOPE_HOST
	}
	s.batch.Begin(typ, flags, rtnl.Header(&h))
	s.batch.Bytes(unix.IFA_LOCAL, p.Addr().AsSlice())
	s.batch.Bytes(unix.IFA_ADDRESS, p.Addr().AsSlice())
	if typ == unix.RTM_NEWADDR {
		s.batch.Uint8(ifaProto, Protocol)
	}
}
