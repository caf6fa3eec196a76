package agent

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"trellis/internal/agentapi"
	"trellis/internal/store"
	"trellis/internal/substrate/dataplane"
	"trellis/internal/substrate/underlay"
	"trellis/internal/tunnel"
	"trellis/internal/vnet"
)

// Uplink is an interface of the machine that links to other machines leave by.
type Uplink struct {
	Interface string
	// Addrs are the addresses that tunnels end at, the machine's own; none: those
	// of the interface.
	Addrs []netip.Addr
	// XDP is where the program runs: "native" (in the driver), "generic" (behind
	// it, at several times the cost), or "auto" and "": as the driver can.
	XDP string
}

// The least MTU of an underlay: what EGRE takes, and the least MTU of IPv6
// (RFC 8200 section 5) inside.
const (
	minUnderlayMTU4 = vnet.MinMTUIPv6 + tunnel.OverheadIPv4
	minUnderlayMTU6 = vnet.MinMTUIPv6 + tunnel.OverheadIPv6
)

// genericCost says what a driver without XDP means.
const genericCost = "has a driver without native XDP, so frames that arrive are taken by generic XDP, at several times the cost"

// stackCost says what a driver means that cannot send what XDP redirects to it.
const stackCost = "has a driver that cannot send what the fast path forwards (no ndo_xdp_xmit), so what leaves by it is forwarded by nodes' own stacks"

// uplinks keeps the configured uplinks in the data plane.
type uplinks struct {
	config   []Uplink
	paths    *dataplane.Dataplane
	underlay *underlay.Underlay

	mu    sync.Mutex
	state map[string]*uplink // by interface
}

// uplink is one of them as it is.
type uplink struct {
	index int // of the interface that carries the program; 0: none
	addrs []netip.Addr
	mode  dataplane.XDPMode
	mtu   int
	// transmits tells that the fast path may leave by it.
	transmits bool
	message   string // what is wrong with it, to follow its name; "": nothing
	// failed tells that the program could not be put on it, which the kernel does
	// not notify of when it becomes possible.
	failed bool
}

// retryUplinks is when an uplink that the program could not be put on is tried
// again.
const retryUplinks = 5 * time.Second

// CheckUplinks refuses uplinks that cannot serve, as New does, and touches
// nothing. It is for whoever needs them before there is an agent.
func CheckUplinks(config []Uplink) (err error) {
	if len(config) == 0 {
		return nil
	}
	names := make([]string, len(config))
	for i, c := range config {
		names[i] = c.Interface
	}
	u := &uplinks{}
	if u.underlay, err = underlay.Open(names); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, u.underlay.Close()) }()
	interfaces := u.underlay.Interfaces()
	for _, c := range config {
		if err := u.serves(c, interfaces[c.Interface]); err != nil {
			return fmt.Errorf("uplink %s %w", c.Interface, err)
		}
	}
	return nil
}

// newUplinks attaches the configured uplinks, and takes the program off all
// others. One that cannot serve is refused. nil: there are none.
func newUplinks(config []Uplink, paths *dataplane.Dataplane) (_ *uplinks, err error) {
	u := &uplinks{config: config, paths: paths, state: map[string]*uplink{}}
	names := make([]string, len(config))
	for i, c := range config {
		if slices.Contains(names[:i], c.Interface) {
			return nil, fmt.Errorf("uplink %s is configured twice", c.Interface)
		}
		names[i] = c.Interface
	}
	have, err := paths.Uplinks()
	if err != nil {
		return nil, err
	}
	for _, h := range have {
		if !slices.Contains(names, h.Name) {
			if err := paths.DetachUplink(h.Name); err != nil {
				return nil, err
			}
		}
	}
	if len(config) == 0 {
		return nil, nil
	}
	if u.underlay, err = underlay.Open(names); err != nil {
		return nil, err
	}
	interfaces := u.underlay.Interfaces()
	for _, c := range config {
		s := &uplink{}
		u.state[c.Interface] = s
		err := u.serves(c, interfaces[c.Interface])
		if err == nil {
			err = u.attach(c, interfaces[c.Interface], s)
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("uplink %s %w", c.Interface, err), u.underlay.Close())
		}
	}
	return u, nil
}

// serves tells why an interface cannot be the uplink, in words that follow its
// name; nil if it can.
func (u *uplinks) serves(c Uplink, i underlay.Interface) error {
	switch {
	case i.Index == 0:
		return errors.New("does not exist on this machine; correct its name in the configuration (ip link shows what there is)")
	case !i.Ethernet:
		return errors.New("is no Ethernet interface; name another in the configuration")
	case !i.Up:
		return fmt.Errorf("is down; set it up (ip link set %s up), or take it out of the configuration", c.Interface)
	}
	addrs := c.addrs(i)
	if len(addrs) == 0 {
		return fmt.Errorf("has no address for tunnels to end at; give it one (ip addr add … dev %s), or name one of the machine's under addresses", c.Interface)
	}
	for _, a := range addrs {
		if !u.underlay.IsLocal(a) {
			return fmt.Errorf("is to use %v, which is no address of this machine; add it (ip addr add %v dev %s), or correct the configuration", a, a, c.Interface)
		}
		least, family := minUnderlayMTU4, "IPv4"
		if a.Is6() {
			least, family = minUnderlayMTU6, "IPv6"
		}
		if i.MTU < least {
			return fmt.Errorf("has an MTU of %d, and tunnels over %s need %d at least: raise it (ip link set %s mtu …)", i.MTU, family, least, c.Interface)
		}
	}
	return nil
}

// addrs gives the addresses that tunnels over the uplink end at, IPv4 first.
func (c Uplink) addrs(i underlay.Interface) []netip.Addr {
	addrs := i.Addrs
	if len(c.Addrs) > 0 {
		addrs = nil
		for _, a := range c.Addrs {
			addrs = append(addrs, a.Unmap())
		}
	}
	addrs = slices.Clone(addrs)
	slices.SortStableFunc(addrs, func(a, b netip.Addr) int { return cmp.Compare(a.BitLen(), b.BitLen()) })
	return addrs
}

// attach puts the program on an uplink, or changes its addresses.
func (u *uplinks) attach(c Uplink, i underlay.Interface, s *uplink) error {
	mode, err := xdpMode(c.XDP)
	if err != nil {
		return err
	}
	addrs := c.addrs(i)
	if s.index == i.Index && s.mtu == i.MTU && slices.Equal(s.addrs, addrs) {
		return nil
	}
	got, err := u.paths.AttachUplink(dataplane.Uplink{Name: c.Interface, Index: i.Index, Addrs: addrs, XDP: mode})
	if err != nil {
		s.index, s.failed = 0, true
		return fmt.Errorf("cannot be used: %w", err)
	}
	*s = uplink{index: i.Index, addrs: addrs, mode: got, mtu: i.MTU}
	have, err := u.paths.Uplinks()
	if err != nil {
		return fmt.Errorf("cannot be read: %w", err)
	}
	for _, h := range have {
		s.transmits = s.transmits || h.Name == c.Interface && h.Transmits
	}
	return nil
}

func xdpMode(word string) (dataplane.XDPMode, error) {
	switch word {
	case "", "auto":
		return dataplane.Auto, nil
	case "native":
		return dataplane.Native, nil
	case "generic":
		return dataplane.Generic, nil
	}
	return 0, fmt.Errorf("is to use the XDP mode %q; there are auto, native and generic", word)
}

// refresh looks at the uplinks again and mends what can be: an interface that was
// made anew, or that has other addresses. What is wrong is logged once.
func (u *uplinks) refresh(log *slog.Logger) {
	interfaces := u.underlay.Interfaces()
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, c := range u.config {
		s, i := u.state[c.Interface], interfaces[c.Interface]
		before := s.message
		s.failed = false
		err := u.serves(c, i)
		if err == nil || i.Index != 0 && i.Index != s.index && len(c.addrs(i)) > 0 {
			err = errors.Join(err, u.attach(c, i, s))
		}
		if i.Index == 0 {
			s.index = 0
		}
		switch {
		case err != nil:
			s.message = strings.ReplaceAll(err.Error(), "\n", "; ")
		case !i.Carrier:
			s.message, s.mtu = "has no carrier", i.MTU
		case s.mode == dataplane.Generic && c.XDP != "generic":
			s.message, s.mtu = genericCost, i.MTU
		case s.mode == dataplane.Native && !s.transmits:
			s.message, s.mtu = stackCost, i.MTU
		default:
			s.message, s.mtu = "", i.MTU
		}
		switch {
		case s.message == before:
		case s.message != "":
			log.Warn("uplink " + c.Interface + " " + s.message)
		default:
			log.Info("uplink " + c.Interface + " is in service")
		}
	}
}

// failing counts the uplinks that are to be tried again though nothing changes.
func (u *uplinks) failing() (count int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, s := range u.state {
		if s.failed {
			count++
		}
	}
	return count
}

// attached reports whether paths may lead by the interface.
func (u *uplinks) attached(index int) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, s := range u.state {
		if s.index == index && index != 0 {
			return true
		}
	}
	return false
}

// Underlay is what the machine offers to others.
type Underlay struct {
	Addrs   []netip.Addr // that tunnels to it end at, IPv4 first
	MTU     int          // least of the uplinks', bytes; 0: no uplink
	Uplinks []store.HostUplink
}

// Underlay tells what the uplinks offer now. One that is down keeps its
// addresses: tunnels to it are shown as down, and not made elsewhere.
func (a *Agent) Underlay() Underlay {
	if a.uplinks == nil {
		return Underlay{}
	}
	return a.uplinks.offer()
}

// UnderlayChanged gives a value after what Underlay tells has changed; several
// changes may give one. It has one reader.
func (a *Agent) UnderlayChanged() <-chan struct{} { return a.changed }

func (u *uplinks) offer() Underlay {
	u.mu.Lock()
	defer u.mu.Unlock()
	var o Underlay
	for _, c := range u.config {
		s := u.state[c.Interface]
		for _, a := range s.addrs {
			if !slices.Contains(o.Addrs, a) {
				o.Addrs = append(o.Addrs, a)
			}
		}
		if o.MTU == 0 || s.mtu < o.MTU {
			o.MTU = s.mtu
		}
		o.Uplinks = append(o.Uplinks, store.HostUplink{Interface: c.Interface, XDP: s.xdp(), Message: s.message})
	}
	slices.SortStableFunc(o.Addrs, func(a, b netip.Addr) int { return cmp.Compare(a.BitLen(), b.BitLen()) })
	return o
}

// xdp names the mode; "" where there is no program.
func (s *uplink) xdp() string {
	if s.index == 0 {
		return ""
	}
	return s.mode.String()
}

// stats tells of the uplinks, sorted by interface.
func (u *uplinks) stats() ([]agentapi.UplinkStats, error) {
	have, err := u.paths.Uplinks()
	if err != nil {
		return nil, err
	}
	drops := map[string]map[string]uint64{}
	for _, h := range have {
		by := map[string]uint64{}
		for reason, n := range h.Drops {
			by[string(reason)] = n
		}
		drops[h.Name] = by
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	var all []agentapi.UplinkStats
	for _, c := range u.config {
		s := u.state[c.Interface]
		all = append(all, agentapi.UplinkStats{
			Interface: c.Interface, XDP: s.xdp(), MTU: s.mtu, Drops: drops[c.Interface], Message: s.message,
		})
	}
	slices.SortFunc(all, func(a, b agentapi.UplinkStats) int { return cmp.Compare(a.Interface, b.Interface) })
	return all, nil
}
