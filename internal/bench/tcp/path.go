package tcp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"

	"trellis/internal/bench"
	"trellis/internal/plan"
	"trellis/internal/substrate/dataplane"
	"trellis/internal/substrate/netns"
	"trellis/internal/substrate/port"
	"trellis/internal/vnet"
)

// path is a chain of nodes, a sender, routers and a receiver, each a network
// namespace set up by the packages that set up Trellis's nodes, from a plan as
// the service compiles it.
type path struct {
	kind   Kind
	plan   *plan.Plan
	root   *bench.Space // shortbridges: the root context, which has the ports
	nodes  []*bench.Space
	joints *dataplane.Dataplane
}

// chain describes a sender, k routers and a receiver in a row, with static
// routes.
func chain(k int) (*plan.Plan, error) {
	v := &vnet.VNet{Name: fmt.Sprintf("chain-%d", k), Routing: vnet.Routing{Protocol: vnet.Static}}
	for i := range k + 2 {
		v.Nodes = append(v.Nodes, vnet.Node{Name: fmt.Sprintf("n%d", i)})
	}
	for i := range k + 1 {
		v.Links = append(v.Links, vnet.Link{Endpoints: []vnet.Interface{{Node: v.Nodes[i].Name}, {Node: v.Nodes[i+1].Name}}})
	}
	if err := errors.Join(v.Complete(), v.Validate()); err != nil {
		return nil, err
	}
	plans, err := plan.Compile(v, plan.Allocation{
		Placement: plan.AllOn(v, "bench"), Hosts: map[string]plan.Host{"bench": {Instance: "bench"}},
	})
	if err != nil {
		return nil, err
	}
	return plans["bench"], nil
}

// newPath builds a path through k routers. Close it also after an error.
func newPath(k int, kind Kind) (*path, error) {
	p := &path{kind: kind}
	if err := p.build(k); err != nil {
		return nil, errors.Join(fmt.Errorf("build a path through %d routers of kind %s: %w", k, kind, err), p.close())
	}
	return p, nil
}

func (p *path) build(k int) (err error) {
	if p.plan, err = chain(k); err != nil {
		return err
	}
	for range p.plan.Nodes {
		s, err := bench.NewSpace(false)
		if err != nil {
			return err
		}
		p.nodes = append(p.nodes, s)
		if err := s.NS.Defaults(nil); err != nil {
			return err
		}
	}
	if p.kind == Shortbridge {
		err = p.shortbridges()
	} else {
		err = p.veths()
	}
	if err != nil {
		return err
	}
	for i := range p.plan.Nodes {
		if err := p.configure(i); err != nil {
			return fmt.Errorf("node %s: %w", p.plan.Nodes[i].Name, err)
		}
	}
	if p.kind == VethNoOffload {
		return p.withoutOffload()
	}
	return nil
}

// configure gives a node its addresses and routes.
func (p *path) configure(i int) error {
	n := &p.plan.Nodes[i]
	in := netns.Interior{Loopbacks: n.Loopbacks}
	for _, q := range n.Ports {
		in.Interfaces = append(in.Interfaces, netns.Interface{Name: q.Name, MAC: q.MAC, MTU: q.MTU, Up: true, Addrs: q.Addrs})
	}
	if _, err := p.nodes[i].NS.Configure(in); err != nil {
		return err
	}
	routes, err := n.Routes.Expand(p.plan.Prefixes)
	if err != nil {
		return err
	}
	_, err = p.nodes[i].NS.SetRoutes(routes)
	return err
}

// shortbridges makes the links as the agent does.
func (p *path) shortbridges() (err error) {
	if p.root, err = bench.NewSpace(true); err != nil {
		return err
	}
	var specs []port.Spec
	up := map[string]bool{}
	for i, n := range p.plan.Nodes {
		for _, q := range n.Ports {
			specs = append(specs, port.Spec{
				Device: q.Device, Alias: "trellis:bench:" + p.plan.VNet + "/" + n.Name + ":" + q.Name,
				Group: p.plan.Group, Name: q.Name, MAC: q.MAC, MTU: q.MTU, Node: p.nodes[i].NS.FD(),
			})
			up[q.Device] = true
		}
	}
	return p.root.Do(func() error {
		if err := port.Create(specs); err != nil {
			return err
		}
		const pins = "/run/bpf"
		if err := dataplane.Mount(pins); err != nil {
			return err
		}
		if p.joints, err = dataplane.Open(pins); err != nil {
			return err
		}
		index := map[string]int{}
		for device := range up {
			i, err := net.InterfaceByName(device)
			if err != nil {
				return fmt.Errorf("find the port %s: %w", device, err)
			}
			index[device] = i.Index
			if err := p.joints.Attach(p.plan.VNet, device, i.Index, dataplane.Port); err != nil {
				return err
			}
		}
		mac := map[string]vnet.MAC{}
		for _, s := range specs {
			mac[s.Device] = s.MAC
		}
		for _, j := range p.plan.Joints {
			if err := p.joints.Join(dataplane.End{Index: index[j.A], MAC: mac[j.A]}, dataplane.End{Index: index[j.B], MAC: mac[j.B]}); err != nil {
				return fmt.Errorf("join %s: %w", j.Link, err)
			}
		}
		return port.SetUp(up)
	})
}

// veths makes each link a veth pair from node to node.
func (p *path) veths() error {
	type end struct {
		node int
		plan.Port
	}
	ends := map[string][]end{}
	for i, n := range p.plan.Nodes {
		for _, q := range n.Ports {
			ends[q.Link] = append(ends[q.Link], end{i, q})
		}
	}
	for _, j := range p.plan.Joints {
		a, b := ends[j.Link][0], ends[j.Link][1]
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU, attrs.HardwareAddr = a.Name, a.MTU, a.MAC[:]
		pair := netlink.NewVeth(attrs)
		pair.PeerName, pair.PeerHardwareAddr, pair.PeerMTU = b.Name, b.MAC[:], uint32(b.MTU)
		pair.PeerNamespace = netlink.NsFd(p.nodes[b.node].NS.FD())
		if err := p.nodes[a.node].Do(func() error { return netlink.LinkAdd(pair) }); err != nil {
			return fmt.Errorf("make the veth pair of link %s: %w", j.Link, err)
		}
	}
	return nil
}

// withoutOffload takes transmit checksum offload from every interface, and makes
// sure that segmentation offload has gone with it.
func (p *path) withoutOffload() error {
	for i, n := range p.plan.Nodes {
		for _, q := range n.Ports {
			err := p.nodes[i].Do(func() error {
				if err := bench.SetChecksumOffload(q.Name, false); err != nil {
					return err
				}
				if on, err := bench.SegmentationOffload(q.Name); err != nil || on {
					return errors.Join(err, fmt.Errorf("%s still segments in hardware without checksums: %v", q.Name, on))
				}
				return nil
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// ends gives the first and the last node, and an address of the last one.
func (p *path) ends() (from, to *bench.Space, address netip.Addr, err error) {
	last := len(p.nodes) - 1
	for _, l := range p.plan.Nodes[last].Loopbacks {
		if l.Addr().Is4() {
			return p.nodes[0], p.nodes[last], l.Addr(), nil
		}
	}
	return nil, nil, netip.Addr{}, fmt.Errorf("the node %s has no IPv4 loopback", p.plan.Nodes[last].Name)
}

// close removes the path: with its namespaces, the kernel removes all of it.
func (p *path) close() error {
	var err error
	if p.joints != nil {
		err = p.joints.Close()
	}
	for _, s := range append(p.nodes, p.root) {
		if s != nil {
			err = errors.Join(err, s.Close())
		}
	}
	return err
}
