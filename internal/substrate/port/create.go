package port

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"trellis/internal/substrate/rtnl"
	"trellis/internal/substrate/sysctl"
	"trellis/internal/vnet"
)

// tagRoom is how much larger the MTU of a port is than that of the node's end:
// the kernel lets a device carry one VLAN tag over its MTU (is_skb_forwardable
// in net/core/dev.c), and a LAN carries two, as provider bridges do.
const tagRoom = 4

// vethPeer is VETH_INFO_PEER (linux/veth.h).
const vethPeer = 1

// Create makes the interfaces: the inner end straight in the node, named,
// addressed and down, for netns to configure; the port down, until SetUp.
//
// Names that are taken in the root context are refused before anything is made.
// If the kernel refuses a pair for another reason, the others are made
// nevertheless, and the error names each that was not.
func Create(specs []Spec) error {
	c, err := rtnl.Dial()
	if err != nil {
		return err
	}
	defer c.Close()
	pairs := make([]pair, len(specs))
	for i, s := range specs {
		pairs[i] = pair{
			outer: end{name: s.Device, alias: s.Alias, mac: stableMAC(s.Device), mtu: s.MTU + tagRoom, group: s.Group},
			inner: end{name: s.Name, mac: s.MAC, mtu: s.MTU},
			node:  s.Node, inNode: true,
		}
	}
	return create(c, pairs)
}

// CreateHelpers makes the helper pairs, both ends down.
func CreateHelpers(helpers []Helper) error {
	c, err := rtnl.Dial()
	if err != nil {
		return err
	}
	defer c.Close()
	pairs := make([]pair, len(helpers))
	for i, h := range helpers {
		shaped, member := HelperNames(h.Device)
		pairs[i] = pair{
			outer: end{name: shaped, alias: h.Alias + shapedSuffix, mac: stableMAC(shaped), mtu: h.MTU + tagRoom, group: h.Group},
			inner: end{name: member, alias: h.Alias + memberSuffix, mac: stableMAC(member), mtu: h.MTU + tagRoom, group: h.Group},
		}
	}
	return create(c, pairs)
}

// CreateTunnels makes the pairs, both ends down.
func CreateTunnels(tunnels []Tunnel) error {
	c, err := rtnl.Dial()
	if err != nil {
		return err
	}
	defer c.Close()
	pairs := make([]pair, len(tunnels))
	for i, t := range tunnels {
		member := TunnelMember(t.Device)
		pairs[i] = pair{
			outer: end{name: t.Device, alias: t.Alias, mac: stableMAC(t.Device), mtu: t.MTU + tagRoom, group: t.Group},
			inner: end{name: member, alias: t.Alias + memberSuffix, mac: stableMAC(member), mtu: t.MTU + tagRoom, group: t.Group},
		}
	}
	return create(c, pairs)
}

// TunnelMember gives the name of the inner end of a tunnel's pair: "ty" before
// what makes the outer end's name unique.
func TunnelMember(device string) string { return "ty" + device[min(2, len(device)):] }

// Marks in the alias of a tunnel's outer end: no other device's has both, since
// the name of a node has neither.
const (
	lanMark    = "/@"
	tunnelMark = ">"
)

// Suffixes of a port's alias, for the ends of its helper pair.
const (
	shapedSuffix = "~shaped"
	memberSuffix = "~member"
)

// HelperNames gives the names of the helper pair of a port: shaped is the end
// that is joined with the port and whose qdisc shapes what the port sends into
// its LAN; member is the end that is enslaved to the bridge in the port's place.
// Both follow from the port's name alone, "ts" and "tm" before what makes that
// unique.
func HelperNames(device string) (shaped, member string) {
	unique := device[min(2, len(device)):]
	return "ts" + unique, "tm" + unique
}

// end is one end of a veth pair.
type end struct {
	name, alias string
	mac         vnet.MAC
	mtu         int
	group       uint32
}

type pair struct {
	outer, inner end
	inNode       bool // the inner end lies in a node
	node         int  // the node's namespace descriptor
}

// rootEnds gives the ends of the pair that lie in the root context.
func (p *pair) rootEnds() []*end {
	if p.inNode {
		return []*end{&p.outer}
	}
	return []*end{&p.outer, &p.inner}
}

func create(c *rtnl.Conn, pairs []pair) error {
	if len(pairs) == 0 {
		return nil
	}
	if err := refuseClashes(c, pairs); err != nil {
		return err
	}
	var b rtnl.Batch
	for i := range pairs {
		pairs[i].request(&b)
	}
	failed, err := c.Execute(&b)
	if err != nil {
		return fmt.Errorf("create %d virtual interfaces: %w", len(pairs), err)
	}
	refused := make(map[int]bool, len(failed))
	var errs []error
	for _, f := range failed {
		refused[f.Index] = true
		errs = append(errs, pairs[f.Index].failure(f.Err))
	}
	// The alias says whose the device is, so it comes at once; a request to
	// create cannot carry it. A device that was not made is not touched: if a
	// stranger took its name just now, it is the stranger's.
	b.Reset()
	var named []string // the device of each message
	for i := range pairs {
		if refused[i] {
			continue
		}
		for _, e := range pairs[i].rootEnds() {
			b.Begin(unix.RTM_SETLINK, 0, rtnl.LinkHeader(0, 0, 0))
			b.String(unix.IFLA_IFNAME, e.name)
			b.String(unix.IFLA_IFALIAS, e.alias)
			named = append(named, e.name)
		}
	}
	failed, err = c.Execute(&b)
	if err != nil {
		return errors.Join(append(errs, fmt.Errorf("set up %d new ports: %w", len(named), err))...)
	}
	for _, f := range failed {
		errs = append(errs, fmt.Errorf("set up the new port %s: %w", named[f.Index], f.Err))
	}
	return errors.Join(append(errs, sysctl.DisableIPv6(named...))...)
}

// refuseClashes checks the names against each other and the machine.
func refuseClashes(c *rtnl.Conn, pairs []pair) error {
	var names []string
	for i := range pairs {
		for _, e := range pairs[i].rootEnds() {
			names = append(names, e.name)
		}
	}
	owner, err := c.LinksNamed(names...)
	if err != nil {
		return fmt.Errorf("read the machine's devices: %w", err)
	}
	var errs []error
	asked := map[string]bool{}
	for i := range pairs {
		for _, e := range pairs[i].rootEnds() {
			have, taken := owner[e.name]
			switch {
			case asked[e.name]:
				errs = append(errs, fmt.Errorf("the device %s is asked for twice", e.name))
			case taken:
				errs = append(errs, clash(e.name, have.Alias))
			}
			asked[e.name] = true
		}
	}
	return errors.Join(errs...)
}

// clash says whose the device is that has the name we need.
func clash(device, alias string) error {
	if strings.HasPrefix(alias, aliasPrefix) {
		return fmt.Errorf("the device %s exists already, as %s's: %w", device, alias, unix.EEXIST)
	}
	return fmt.Errorf("a device named %s exists on this machine and is not Trellis's; rename it (ip link set %s name …) or remove it, then try again: %w",
		device, device, unix.EEXIST)
}

// request appends the message that makes the pair.
func (p *pair) request(b *rtnl.Batch) {
	// No ARP and no multicast on the port: nothing of the root context speaks there.
	const quiet, mask = unix.IFF_NOARP, unix.IFF_NOARP | unix.IFF_MULTICAST
	b.Begin(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL, rtnl.LinkHeader(0, quiet, mask))
	p.outer.describe(b)
	b.Nest(unix.IFLA_LINKINFO, func() {
		b.String(unix.IFLA_INFO_KIND, "veth")
		b.Nest(unix.IFLA_INFO_DATA, func() {
			b.Nest(vethPeer, func() {
				if p.inNode {
					b.Raw(rtnl.LinkHeader(0, 0, 0))
				} else {
					b.Raw(rtnl.LinkHeader(0, quiet, mask))
				}
				p.inner.describe(b)
				if p.inNode {
					b.Uint32(unix.IFLA_NET_NS_FD, uint32(p.node))
				}
			})
		})
	})
}

func (e *end) describe(b *rtnl.Batch) {
	b.String(unix.IFLA_IFNAME, e.name)
	b.Uint32(unix.IFLA_MTU, uint32(e.mtu))
	if !e.mac.IsZero() {
		b.Bytes(unix.IFLA_ADDRESS, e.mac[:])
	}
	if e.group != 0 {
		b.Uint32(unix.IFLA_GROUP, e.group)
	}
	// One queue in each direction: Trellis's programs and the kernel's backlog
	// spread the work, the device's own queues stay unused, and each costs
	// memory and two entries of sysfs.
	b.Uint32(unix.IFLA_NUM_TX_QUEUES, 1)
	b.Uint32(unix.IFLA_NUM_RX_QUEUES, 1)
}

func (p *pair) failure(err error) error {
	inside := p.inner.name
	switch {
	case errors.Is(err, unix.EEXIST):
		return fmt.Errorf("create the port %s with %s inside: one of the two names is taken; if the node has an interface %s of its own, rename that: %w",
			p.outer.name, inside, inside, err)
	case errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("create the port %s: this kernel has no veth devices; load the module (modprobe veth) or use a kernel with CONFIG_VETH: %w", p.outer.name, err)
	}
	return fmt.Errorf("create the port %s with %s inside: %w", p.outer.name, inside, err)
}

// stableMAC gives a port its own address, locally administered, the same after
// every restart. It is explicit because udev gives a new random one to devices
// whose address the kernel drew, and shows up in no frame.
func stableMAC(device string) vnet.MAC {
	sum := sha256.Sum256([]byte("trellis port " + device))
	m := vnet.MAC(sum[:6])
	m[0] = m[0]&^0x03 | 0x02
	return m
}

// sorted gives the keys of a map in order, so that requests are repeatable.
func sorted[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
