package forward

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"trellis/internal/vnet"
)

// Names of configurations.
const (
	Native      = "native"       // the machine's own stack
	XDPNative   = "xdp-native"   // XDP with the machine's FIB
	VethBridge  = "veth-bridge"  // a bridge and a veth pair on both sides of a router
	VethMirred  = "veth-mirred"  // tc mirred and a veth pair on both sides
	VXLANBridge = "vxlan-bridge" // a VXLAN tunnel in front of each bridge
	VXLANMirred = "vxlan-mirred" // a VXLAN tunnel, stitched to the veth pair by tc mirred
	Shortbridge = "shortbridge"  // Trellis's port programs on both sides

	// generatorOnly is the sink at the card: what everything else has on top.
	generatorOnly = "generator"

	chainPrefix = "chain-" // chain-N: N routers, joined as Trellis joins them
)

// MaxRouters bounds the chain: each takes one off the TTL.
const MaxRouters = 60

// names are the configurations in the order of documents; chains besides.
var names = []string{Native, XDPNative, VethBridge, VethMirred, VXLANMirred, VXLANBridge, Shortbridge}

// Names gives the configurations that have a name of their own. Chains are
// besides: chain-N of 1 to MaxRouters routers.
func Names() []string { return slices.Clone(names) }

// configuration is a way of forwarding.
type configuration struct {
	name       string
	routers    int  // virtual ones
	tunnelled  bool // by VXLAN on both sides
	sinkAtCard bool
	// join does what the root context does between its cards and the routers'
	// ports, in the root context.
	join func(r *rig) error
}

// Check tells whether there is a configuration of that name to ask for. The
// generator alone is always measured.
func Check(name string) error {
	if name == generatorOnly {
		return unknown(name)
	}
	_, err := lookUp(name)
	return err
}

func unknown(name string) error {
	return fmt.Errorf("there is no configuration %q; known are %s and chain-N of N routers", name, strings.Join(names, ", "))
}

// lookUp finds a configuration by its name.
func lookUp(name string) (*configuration, error) {
	switch name {
	case generatorOnly:
		return &configuration{name: name, sinkAtCard: true, join: func(*rig) error { return nil }}, nil
	case Native:
		return &configuration{name: name, join: native}, nil
	case XDPNative:
		return &configuration{name: name, join: xdpNative}, nil
	case VethBridge:
		return &configuration{name: name, routers: 1, join: bridged(inCard, outCard)}, nil
	case VethMirred:
		return &configuration{name: name, routers: 1, join: stitched(inCard, outCard)}, nil
	case VXLANBridge:
		return &configuration{name: name, routers: 1, tunnelled: true, join: tunnelled(bridged(inTunnel, outTunnel))}, nil
	case VXLANMirred:
		return &configuration{name: name, routers: 1, tunnelled: true, join: tunnelled(stitched(inTunnel, outTunnel))}, nil
	case Shortbridge:
		return &configuration{name: name, routers: 1, join: shortbridges}, nil
	}
	if digits, ok := strings.CutPrefix(name, chainPrefix); ok {
		n, err := strconv.Atoi(digits)
		if err == nil && n >= 1 && n <= MaxRouters && strconv.Itoa(n) == digits {
			return &configuration{name: name, routers: n, join: shortbridges}, nil
		}
		return nil, fmt.Errorf("%q: a chain has 1 to %d routers, such as chain-10", name, MaxRouters)
	}
	return nil, unknown(name)
}

// frames gives what the generator has to send, and what must arrive.
func (c *configuration) frames(r *rig) (send, expect frame) {
	there := endpoints{srcMAC: genMAC, dstMAC: inMAC, src: sourceHost, dst: sinkHost}
	back := endpoints{srcMAC: outMAC, dstMAC: sinkMAC, src: sourceHost, dst: sinkHost}
	hops := 1
	switch {
	case c.sinkAtCard:
		send = plain(there, firstTTL, r.size)
		return send, send
	case c.routers > 0:
		hops = c.routers
		there.dstMAC, back.srcMAC = inPortMAC(0), outPortMAC(c.routers-1)
	}
	send, expect = plain(there, firstTTL, r.size), plain(back, uint8(firstTTL-hops), r.size)
	if c.tunnelled {
		send = vxlan(endpoints{srcMAC: genMAC, dstMAC: inMAC, src: tunnelFrom, dst: tunnelIn}, inVNI, send)
		expect = vxlan(endpoints{srcMAC: outMAC, dstMAC: sinkMAC, src: tunnelOut, dst: tunnelTo}, outVNI, expect)
	}
	return send, expect
}

// macs gives the addresses that a bridge finds behind its ports.
func (r *rig) macs() (router, far vnet.MAC) { return inPortMAC(0), sinkMAC }
