package forward

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"

	"trellis/internal/bench"
	"trellis/internal/substrate/netns"
	"trellis/internal/substrate/port"
	"trellis/internal/vnet"
)

// Names of devices. Routers have eth1, where packets come in, and eth2.
const (
	genDevice, sinkDevice = "gen0", "sink0"
	inCard, outCard       = "nic0", "nic1"
	routerIn, routerOut   = "eth1", "eth2"
	group                 = 0x7e00bec4 // of the ports, of no importance here
	cardMTU               = 1600       // of the IP packet: room for tunnels about full frames
	routerMTU             = vnet.DefaultMTU
	owner                 = "trellis:bench:forward/"
	hostBits              = 24
)

// Addresses of devices outside the routers, locally administered (IEEE 802c).
var (
	genMAC  = vnet.MAC{0x02, 0xbe, 0xc4, 0, 0, 1}
	sinkMAC = vnet.MAC{0x02, 0xbe, 0xc4, 0, 0, 2}
	inMAC   = vnet.MAC{0x02, 0xbe, 0xc4, 0, 0, 3}
	outMAC  = vnet.MAC{0x02, 0xbe, 0xc4, 0, 0, 4}
)

// Networks for benchmarks (RFC 2544, appendix C.2.2), and for documentation
// (RFC 5737) in the underlay.
var (
	sourceHost = netip.MustParseAddr("198.18.0.2")
	firstHop   = netip.MustParseAddr("198.18.0.1")
	lastHop    = netip.MustParseAddr("198.19.0.1")
	sinkHost   = netip.MustParseAddr("198.19.0.2")
	sinkNet    = netip.MustParsePrefix("198.19.0.0/24")

	benchNet    = netip.MustParsePrefix("198.18.0.0/15")
	underlayNet = netip.MustParsePrefix("192.0.2.0/24")
	rootNet     = netip.MustParsePrefix("100.64.0.0/10") // between root context and routers, RFC 6598

	tunnelFrom = netip.MustParseAddr("192.0.2.2") // where the generator's tunnel begins
	tunnelIn   = netip.MustParseAddr("192.0.2.1")
	tunnelOut  = netip.MustParseAddr("192.0.2.129")
	tunnelTo   = netip.MustParseAddr("192.0.2.130") // where the sink's tunnel ends
)

// rig is a configuration, built: spaces, cards, routers, generator and sink.
type rig struct {
	config  *configuration
	core    int      // where routers and sink run
	sending int      // the generator's core
	sc      Scenario // with what the configuration's name says
	outside *bench.Space
	root    *bench.Space
	routers []*bench.Space
	held    []io.Closer // programs and maps
	meter   meter
}

// newRig builds a configuration for a scenario, on a core.
func newRig(c *configuration, core int, sc Scenario) (*rig, error) {
	return newRigOn(c, core, core, sc, false)
}

// newRigOn builds a configuration whose generator has a core of its own where
// sending is another than core; timed says whether frames have the time in them,
// and are sent at a pace.
func newRigOn(c *configuration, sending, core int, sc Scenario, timed bool) (*rig, error) {
	r := &rig{config: c, core: core, sending: sending, sc: sc.of(c)}
	r.meter.timed = timed
	if err := r.build(c); err != nil {
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

func (r *rig) build(c *configuration) error {
	for _, s := range []**bench.Space{&r.outside, &r.root} {
		var err error
		if *s, err = bench.NewSpace(s == &r.root); err != nil {
			return err
		}
		if err := (*s).NS.Defaults(nil); err != nil {
			return err
		}
	}
	if err := r.outside.Do(func() error { return pinThread(r.sending) }); err != nil {
		return err
	}
	if err := r.card(genDevice, genMAC, inCard, inMAC); err != nil {
		return err
	}
	if err := r.card(sinkDevice, sinkMAC, outCard, outMAC); err != nil {
		return err
	}
	for range c.routers {
		s, err := bench.NewSpace(false)
		if err != nil {
			return err
		}
		r.routers = append(r.routers, s)
		if err := s.NS.Defaults(nil); err != nil {
			return err
		}
	}
	devices := c.devices
	if devices == nil {
		devices = makePorts
	}
	if err := r.root.Do(func() error { return devices(r) }); err != nil {
		return err
	}
	if err := r.setUpRouters(); err != nil {
		return err
	}
	if err := r.root.Do(func() error { return c.join(r) }); err != nil {
		return err
	}
	if r.sending != r.core {
		if err := r.receiveOn(inCard, r.core); err != nil {
			return err
		}
	}
	if err := r.fillFIBs(); err != nil {
		return err
	}
	r.meter.outside = r.outside
	r.meter.kinds = c.kinds(r.sc.Size)
	r.meter.size, r.meter.flows, r.meter.beside = r.sc.Size, r.sc.Flows, c.sides > 0
	if c.sinkAtCard {
		return r.meter.place(r.core, genDevice, r.root, inCard)
	}
	return r.meter.place(r.core, genDevice, r.outside, sinkDevice)
}

// card makes a veth pair: a card of the root context, up and receiving by NAPI,
// and the device at the other end of its cable.
func (r *rig) card(far string, farMAC vnet.MAC, name string, mac vnet.MAC) error {
	err := r.root.Do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU, attrs.HardwareAddr = name, cardMTU, mac[:]
		pair := netlink.NewVeth(attrs)
		pair.PeerName, pair.PeerHardwareAddr, pair.PeerMTU = far, farMAC[:], cardMTU
		pair.PeerNamespace = netlink.NsFd(r.outside.NS.FD())
		if err := netlink.LinkAdd(pair); err != nil {
			return err
		}
		if err := bench.SetReceiveOffload(name, true); err != nil {
			return err
		}
		return netlink.LinkSetUp(pair)
	})
	if err == nil {
		err = r.outside.Do(func() error { return setUp(far) })
	}
	if err != nil {
		return fmt.Errorf("make the card %s: %w", name, err)
	}
	return nil
}

// Devices of router i in the root context, and addresses of its interfaces.
func inPort(i int) string      { return fmt.Sprintf("in%d", i) }
func outPort(i int) string     { return fmt.Sprintf("out%d", i) }
func inPortMAC(i int) vnet.MAC { return vnet.MAC{0x02, 0xbe, 0xc4, 1, 0, byte(i)} }
func outPortMAC(i int) vnet.MAC {
	return vnet.MAC{0x02, 0xbe, 0xc4, 2, 0, byte(i)}
}

// between gives the addresses of the link from router i to the next.
func between(i int) (a, b netip.Addr) {
	return netip.AddrFrom4([4]byte{198, 18, byte(100 + i), 1}), netip.AddrFrom4([4]byte{198, 18, byte(100 + i), 2})
}

// fillFIBs gives each router, or the root context where there is none, its
// routes. Routers in user space have theirs already.
func (r *rig) fillFIBs() error {
	if len(r.routers) == 0 && !r.config.user && !r.config.sinkAtCard {
		return fill(r.root, outCard, r.sc.Routes)
	}
	for _, s := range r.routers {
		if err := fill(s, routerOut, r.sc.Routes); err != nil {
			return err
		}
	}
	return nil
}

// side gives the address for router i beside others of what is router 0's.
func side(a netip.Addr, i int) netip.Addr {
	b := a.As4()
	b[2] += byte(i)
	return netip.AddrFrom4(b)
}

// makePorts gives each router its two interfaces, by veth pairs. The ports in the
// root context stay down until something is attached to them.
func makePorts(r *rig) error {
	var specs []port.Spec
	for i, s := range r.routers {
		specs = append(specs,
			port.Spec{Device: inPort(i), Alias: fmt.Sprintf("%sr%d:%s", owner, i, routerIn), Group: group, Name: routerIn, MAC: inPortMAC(i), MTU: routerMTU, Node: s.NS.FD()},
			port.Spec{Device: outPort(i), Alias: fmt.Sprintf("%sr%d:%s", owner, i, routerOut), Group: group, Name: routerOut, MAC: outPortMAC(i), MTU: routerMTU, Node: s.NS.FD()})
	}
	if len(specs) == 0 {
		return nil
	}
	return port.Create(specs)
}

// setUpRouters gives each router's interfaces their addresses, and the router a
// route to the sink's network.
func (r *rig) setUpRouters() error {
	last := len(r.routers) - 1
	for i, s := range r.routers {
		here, there := firstHop, sinkHost
		thereMAC, out := sinkMAC, lastHop
		switch {
		case r.config.routed:
			var err error
			in, beyond := rootLinks(i)
			here, out, there = in.router, beyond.router, beyond.root
			if thereMAC, err = r.rootMAC(i); err != nil {
				return err
			}
		case r.config.sides > 0:
			here, out, there = side(firstHop, i), side(lastHop, i), side(sinkHost, i)
		case i > 0:
			_, here = between(i - 1)
		}
		inRow := r.config.sides == 0 && i < last
		if inRow {
			out, there = between(i)
			thereMAC = inPortMAC(i + 1)
		}
		_, err := s.NS.Configure(netns.Interior{Interfaces: []netns.Interface{
			{Name: routerIn, MAC: inPortMAC(i), MTU: routerMTU, Up: true, Addrs: []netip.Prefix{netip.PrefixFrom(here, hostBits)}},
			{Name: routerOut, MAC: outPortMAC(i), MTU: routerMTU, Up: true, Addrs: []netip.Prefix{netip.PrefixFrom(out, hostBits)}},
		}})
		if err != nil {
			return fmt.Errorf("router %d: %w", i, err)
		}
		err = s.Do(func() error {
			if err := neighbour(routerOut, there, thereMAC); err != nil || !inRow && !r.config.routed {
				return err
			}
			device, err := netlink.LinkByName(routerOut)
			if err != nil {
				return err
			}
			// The port is still down, and with it the link's carrier.
			return netlink.RouteAdd(&netlink.Route{
				LinkIndex: device.Attrs().Index, Flags: int(netlink.FLAG_ONLINK), Gw: there.AsSlice(), Dst: network(r.beyond(i)),
			})
		})
		if err != nil {
			return fmt.Errorf("router %d: %w", i, err)
		}
	}
	return nil
}

// bringUpPorts sets the routers' ports up.
func (r *rig) bringUpPorts() error {
	up := map[string]bool{}
	for i := range r.routers {
		up[inPort(i)], up[outPort(i)] = true, true
	}
	return port.SetUp(up)
}

// hold keeps a program or a map until the rig is closed.
func (r *rig) hold(c io.Closer) { r.held = append(r.held, c) }

// close removes the rig: with its namespaces, the kernel removes all of it.
func (r *rig) close() error {
	err := r.meter.close()
	for _, c := range r.held {
		err = errors.Join(err, c.Close())
	}
	for _, s := range append(r.routers, r.root, r.outside) {
		if s != nil {
			err = errors.Join(err, s.Close())
		}
	}
	return err
}

// The following work in the network namespace of the calling thread.

func setUp(name string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(l)
}

func address(name string, p netip.Prefix) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.AddrAdd(l, &netlink.Addr{IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: network(p).Mask}})
}

// neighbour sets who has an address, for good.
func neighbour(device string, a netip.Addr, mac vnet.MAC) error {
	l, err := netlink.LinkByName(device)
	if err != nil {
		return err
	}
	return netlink.NeighSet(&netlink.Neigh{LinkIndex: l.Attrs().Index, State: netlink.NUD_PERMANENT, IP: a.AsSlice(), HardwareAddr: mac[:]})
}

func network(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Masked().Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
