package forward

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Names of configurations.
const (
	Native      = "native"              // the machine's own stack
	XDPNative   = "xdp-native"          // XDP with the machine's FIB
	VethBridge  = "veth-bridge"         // a bridge and a veth pair on both sides of a router
	VethMirred  = "veth-mirred"         // tc mirred and a veth pair on both sides
	VXLANBridge = "vxlan-bridge"        // a VXLAN tunnel in front of each bridge
	VXLANMirred = "vxlan-mirred"        // a VXLAN tunnel, stitched to the veth pair by tc mirred
	Shortbridge = "shortbridge"         // Trellis's port programs on both sides, no tunnel
	EGREStack   = "egre-stack"          // Trellis's tunnels on both sides, the router's own stack between
	EGREFast    = "egre-fast"           // Trellis's tunnels and its fast path
	EGRERated   = "egre-fast-rated"     // the same with a rate set on both links, and less traffic than that
	EGREFast100 = "egre-fast-100k"      // egre-fast with 100,000 routes in the router's FIB
	EGREFlows   = "egre-fast-flows"     // egre-fast with packets of 1,024 flows in turns
	GREInside   = "tunnel-inside"       // GRE tunnels that end in the router's namespace, by the kernel's gretap
	VXLANInside = "vxlan-inside"        // VXLAN tunnels that end in the router's namespace
	Macvlan     = "macvlan"             // a macvlan over each card, in the router's namespace
	UserPacket  = "user-packet"         // a router in user space, by packet sockets at the cards
	UserXDP     = "user-xdp"            // the same by AF_XDP sockets, in copy mode
	EGREFlows32 = "egre-fast-flows-32k" // egre-fast with packets of 32,768 flows in turns
	VethRouted  = "veth-routed"         // the root context's stack routes to and from a veth pair on both sides of a router

	// The sink at the card, without a tunnel, with the headers of VXLAN and of
	// EGRE: what everything else has on top.
	generatorOnly  = "generator"
	generatorVXLAN = "generator-vxlan"
	generatorEGRE  = "generator-egre"

	chainPrefix       = "chain-"       // chain-N: N routers in a row on the fast path, tunnels at its ends
	shortbridgePrefix = "shortbridge-" // shortbridge-N: N routers in a row by port programs
	besideInfix       = "-x"           // CONFIGURATION-xN: N routers side by side
)

// MaxRouters bounds the chain: each takes one off the TTL.
const MaxRouters = 60

// names are the configurations in the order of documents; rows of routers
// besides.
var names = []string{Native, XDPNative, Macvlan, VethBridge, VethMirred, VXLANInside, GREInside, VXLANMirred, VXLANBridge, UserPacket, UserXDP, Shortbridge, EGREStack, EGREFast, EGRERated, EGREFast100, EGREFlows, EGREFlows32}

// manyFlows is how many flows there are where a configuration's name ends in
// -flows; each has a source address of its own.
const manyFlows = 1024

// besides are the configurations that there are of several routers side by side:
// bridged and routed as UCL's (2007), and Trellis's.
var besides = []string{VethBridge, VethRouted, EGREStack, EGREFast}

// Beside gives the configurations of n routers side by side.
func Beside(n int) []string {
	var all []string
	for _, name := range besides {
		all = append(all, name+besideInfix+strconv.Itoa(n))
	}
	return all
}

var generators = []string{generatorOnly, generatorVXLAN, generatorEGRE}

// Names gives the configurations that have a name of their own. Rows of routers
// are besides: chain-N and shortbridge-N of 1 to MaxRouters in a row, and those of
// [Beside] side by side.
func Names() []string { return slices.Clone(names) }

// Standard gives the configurations of docs/benchmarks.md.
func Standard() []string { return append(Names(), chainPrefix+"10") }

// configuration is a way of forwarding.
type configuration struct {
	name       string
	routers    int    // virtual ones, in a row where sides is 0
	sides      int    // virtual ones side by side, each with packets of its own; 0: none
	routed     bool   // the root context routes between its cards and the routers
	user       bool   // the router is in user space, without a namespace
	wrap       wrap   // the tunnel on both sides; nil: none
	unwrapped  wrap   // what the sink expects, where that is another than wrap
	generator  string // the configuration that generates and counts such frames alone
	sinkAtCard bool
	routes     int // in each router's FIB, besides those that are needed
	flows      int // that packets take turns in, a power of two; 0: one
	// devices makes the router's interfaces, in the root context; nil: veth
	// pairs.
	devices func(r *rig) error
	// join does what the root context does between its cards and the routers'
	// ports, in the root context.
	join func(r *rig) error
}

// Check tells whether there is a configuration of that name to ask for.
// Generators by themselves are measured as they are needed.
func Check(name string) error {
	config, err := lookUp(name)
	if err == nil && config.sinkAtCard {
		return unknown(name)
	}
	return err
}

func unknown(name string) error {
	return fmt.Errorf("there is no configuration %q; known are %s, chain-N and shortbridge-N of N routers in a row, and %s-xN of N side by side", name, strings.Join(names, ", "), strings.Join(besides, "-xN, "))
}

// lookUp finds a configuration by its name.
func lookUp(name string) (*configuration, error) {
	switch name {
	case generatorOnly:
		return &configuration{name: name, generator: name, sinkAtCard: true, join: nothing}, nil
	case generatorVXLAN:
		return &configuration{name: name, generator: name, sinkAtCard: true, wrap: vxlan, join: nothing}, nil
	case generatorEGRE:
		return &configuration{name: name, generator: name, sinkAtCard: true, wrap: egreFrame, join: nothing}, nil
	case Native:
		return &configuration{name: name, generator: generatorOnly, join: native}, nil
	case XDPNative:
		return &configuration{name: name, generator: generatorOnly, join: xdpNative}, nil
	case VethBridge:
		return &configuration{name: name, routers: 1, generator: generatorOnly, join: bridged(inCard, outCard)}, nil
	case VethMirred:
		return &configuration{name: name, routers: 1, generator: generatorOnly, join: stitched(inCard, outCard)}, nil
	case VXLANBridge:
		return &configuration{name: name, routers: 1, wrap: vxlan, generator: generatorVXLAN, join: tunnelled(bridged(inTunnel, outTunnel))}, nil
	case VXLANMirred:
		return &configuration{name: name, routers: 1, wrap: vxlan, generator: generatorVXLAN, join: tunnelled(stitched(inTunnel, outTunnel))}, nil
	case Shortbridge:
		return &configuration{name: name, routers: 1, generator: generatorOnly, join: shortbridges}, nil
	case GREInside:
		const remedy = "load the module ip_gre, or measure vxlan-inside instead"
		return &configuration{name: name, routers: 1, wrap: egreFrame, unwrapped: gretapFrame, generator: generatorEGRE, devices: tunnelsInside(gretapDevice, "GRE devices", remedy), join: nothing}, nil
	case VXLANInside:
		const remedy = "load the module vxlan"
		return &configuration{name: name, routers: 1, wrap: vxlan, generator: generatorVXLAN, devices: tunnelsInside(vxlanDevice, "VXLAN devices", remedy), join: nothing}, nil
	case Macvlan:
		return &configuration{name: name, routers: 1, generator: generatorOnly, devices: macvlans, join: nothing}, nil
	case UserPacket:
		return &configuration{name: name, user: true, generator: generatorOnly, join: userPacket}, nil
	case UserXDP:
		return &configuration{name: name, user: true, generator: generatorOnly, join: userXDP}, nil
	case EGREStack:
		return &configuration{name: name, routers: 1, wrap: egreFrame, generator: generatorEGRE, join: egre(false)}, nil
	case EGREFast100:
		return &configuration{name: name, routers: 1, wrap: egreFrame, generator: generatorEGRE, routes: manyRoutes, join: egre(true)}, nil
	case EGREFlows:
		return &configuration{name: name, routers: 1, wrap: egreFrame, generator: generatorEGRE, flows: manyFlows, join: egre(true)}, nil
	case EGREFlows32:
		return &configuration{name: name, routers: 1, wrap: egreFrame, generator: generatorEGRE, flows: MaxFlows, join: egre(true)}, nil
	case EGRERated:
		return &configuration{name: name, routers: 1, wrap: egreFrame, generator: generatorEGRE, join: egreLinks(true, true)}, nil
	case EGREFast:
		return &configuration{name: name, routers: 1, wrap: egreFrame, generator: generatorEGRE, join: egre(true)}, nil
	}
	if digits, ok := strings.CutPrefix(name, chainPrefix); ok {
		n, err := count(digits)
		return &configuration{name: name, routers: n, wrap: egreFrame, generator: generatorEGRE, join: egre(true)}, err
	}
	if digits, ok := strings.CutPrefix(name, shortbridgePrefix); ok {
		n, err := count(digits)
		return &configuration{name: name, routers: n, generator: generatorOnly, join: shortbridges}, err
	}
	if base, digits, ok := cutLast(name, besideInfix); ok && slices.Contains(besides, base) {
		n, err := beside(digits)
		c := &configuration{name: name, routers: n, sides: n, generator: generatorOnly}
		switch base {
		case VethBridge:
			c.join = bridged(inCard, outCard)
		case VethRouted:
			c.routed, c.join = true, routed
		default:
			c.wrap, c.generator, c.join = egreFrame, generatorEGRE, egre(base == EGREFast)
		}
		return c, err
	}
	return nil, unknown(name)
}

// cutLast cuts a name at the last separator.
func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

// MaxBeside bounds the routers side by side: it is MAX_ROUTERS of bpf/frame.h.
const MaxBeside = 64

// beside reads how many routers there are side by side.
func beside(digits string) (int, error) {
	n, err := strconv.Atoi(digits)
	if err != nil || n < 1 || n > MaxBeside || strconv.Itoa(n) != digits {
		return 0, fmt.Errorf("%q routers side by side: 1 to %d are possible, such as egre-fast-x16", digits, MaxBeside)
	}
	return n, nil
}

// count reads how many routers there are in a row.
func count(digits string) (int, error) {
	n, err := strconv.Atoi(digits)
	if err != nil || n < 1 || n > MaxRouters || strconv.Itoa(n) != digits {
		return 0, fmt.Errorf("%q routers in a row: 1 to %d are possible, such as chain-10", digits, MaxRouters)
	}
	return n, nil
}

// kind is what the generator has to send, and what must arrive: one of each size
// for each router beside others.
type kind struct{ send, expect frame }

// kinds gives the kinds of frames of a scenario: those of router 0 by size, then
// router 1's.
func (c *configuration) kinds(size Size) []kind {
	var all []kind
	sizes, _ := size.parts()
	for i := range max(1, c.sides) {
		for _, n := range sizes {
			all = append(all, c.kind(i, n))
		}
	}
	return all
}

// kind gives the frames of a size for router i beside others.
func (c *configuration) kind(i, size int) kind {
	there := endpoints{srcMAC: genMAC, dstMAC: inMAC, src: side(sourceHost, i), dst: side(sinkHost, i)}
	back := endpoints{srcMAC: outMAC, dstMAC: sinkMAC, src: there.src, dst: there.dst}
	hops := 1
	switch {
	case c.sinkAtCard:
		back, hops = there, 0
	case c.routed:
		hops = 3 // the root context's stack, the router's, the root context's
	case c.user:
		there.dstMAC, back.srcMAC = inPortMAC(0), outPortMAC(0)
	case c.sides > 0:
		there.dstMAC, back.srcMAC = inPortMAC(i), outPortMAC(i)
	case c.routers > 0:
		hops = c.routers
		there.dstMAC, back.srcMAC = inPortMAC(0), outPortMAC(c.routers-1)
	}
	send, expect := plain(there, firstTTL, size), plain(back, uint8(firstTTL-hops), size)
	if c.wrap == nil {
		return kind{send, expect}
	}
	send = c.wrap(endpoints{srcMAC: genMAC, dstMAC: inMAC, src: tunnelFrom, dst: tunnelIn}, inTunnelID+uint32(i), send)
	if c.sinkAtCard {
		return kind{send, send}
	}
	unwrapped := c.wrap
	if c.unwrapped != nil {
		unwrapped = c.unwrapped
	}
	return kind{send, unwrapped(endpoints{srcMAC: outMAC, dstMAC: sinkMAC, src: tunnelOut, dst: tunnelTo}, outTunnelID+uint32(i), expect)}
}
