package reconcile

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"trellis/internal/plan"
)

// Fault is a difference between an interface of a node and the plan that only the
// node's own root can have made, since the plan was in place.
type Fault struct {
	Port string // the interface's name in the node; "lo" for the loopback addresses
	Text string // for people: "eth1 was removed from inside"
	// Cut: nothing passes the interface.
	Cut bool
	// Down: it was set down, which is the classic way to fail a link and no harm. It
	// is told, and undone by nobody but who asks.
	Down bool
}

// Faults compares a running node with its plan. there reports whether a device is
// in the root context. What the tenant has added (addresses, devices, routes) is its
// own business; and so are the MTU, the MAC address and the addresses of an interface
// that it has put into a bridge, bond or VRF of its own.
func Faults(n *plan.Node, have Node, there func(device string) bool) []Fault {
	var faults []Fault
	add := func(f Fault, format string, args ...any) {
		f.Text = fmt.Sprintf(format, args...)
		faults = append(faults, f)
	}
	for _, p := range n.Ports {
		f := Fault{Port: p.Name}
		is, inside := have.Interfaces[p.Name]
		outside := there(p.Device)
		cut := Fault{Port: p.Name, Cut: true}
		switch {
		case !outside && !inside:
			add(cut, "%s was removed from inside", p.Name)
			continue
		case !outside:
			add(cut, "%s was removed from inside, and another made in its place", p.Name)
			continue
		case !inside:
			add(cut, "%s was renamed from inside", p.Name)
			continue
		case !is.Up:
			add(Fault{Port: p.Name, Cut: true, Down: true}, "%s is down (set from inside)", p.Name)
		}
		if is.Enslaved {
			continue
		}
		if is.MTU != p.MTU {
			add(f, "%s was given the MTU %d from inside, in place of %d", p.Name, is.MTU, p.MTU)
		}
		if is.MAC != p.MAC {
			add(f, "%s was given the MAC address %v from inside, in place of %v", p.Name, is.MAC, p.MAC)
		}
		if gone := without(p.Addrs, is.Addrs); len(gone) > 0 {
			add(f, "%s has lost %v from inside", p.Name, gone[0])
		}
	}
	if gone := without(n.Loopbacks, have.Loopbacks); len(gone) > 0 {
		add(Fault{Port: "lo"}, "lo has lost %v from inside", gone[0])
	}
	return faults
}

// without gives those of the addresses that are not among others.
func without(addrs, others []netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(addrs), func(a netip.Prefix) bool { return slices.Contains(others, a) })
}

// Leave has a comparison pass over faults, by node: it gives the plan without the
// interfaces that are cut off, and makes the rest of the kernel's what is wanted.
// Interfaces that are down count as up, and are left to whoever sets the nodes up.
func Leave(want *plan.Plan, have *Kernel, faults map[string][]Fault) *plan.Plan {
	if len(faults) == 0 {
		return want
	}
	p := *want
	p.Nodes = slices.Clone(p.Nodes)
	cut := map[string]bool{} // devices
	for i := range p.Nodes {
		n := &p.Nodes[i]
		is, ok := have.Nodes[n.Name]
		if !ok || len(faults[n.Name]) == 0 {
			continue
		}
		is.Interfaces = maps.Clone(is.Interfaces)
		at := map[string]bool{} // interfaces with faults
		for _, f := range faults[n.Name] {
			if f.Port == loopback {
				is.Loopbacks = slices.SortedFunc(slices.Values(n.Loopbacks), netip.Prefix.Compare)
			}
			at[f.Port] = true
			for _, port := range n.Ports {
				if port.Name == f.Port && f.Cut && !f.Down {
					cut[port.Device] = true
				}
			}
		}
		n.Ports = slices.DeleteFunc(slices.Clone(n.Ports), func(port plan.Port) bool { return cut[port.Device] })
		for _, port := range n.Ports {
			if !at[port.Name] {
				continue
			}
			i := is.Interfaces[port.Name]
			i.Up = true
			if slices.ContainsFunc(faults[n.Name], func(f Fault) bool { return f.Port == port.Name && !f.Down }) {
				i.MTU, i.MAC = port.MTU, port.MAC
				i.Addrs = slices.SortedFunc(slices.Values(port.Addrs), netip.Prefix.Compare)
			}
			is.Interfaces[port.Name] = i
		}
		have.Nodes[n.Name] = is
	}
	maps.DeleteFunc(have.Devices, func(device string, _ Device) bool { return cut[device] })
	p.Joints = slices.DeleteFunc(slices.Clone(p.Joints), func(j plan.Joint) bool { return cut[j.A] || cut[j.B] })
	p.Tunnels = slices.DeleteFunc(slices.Clone(p.Tunnels), func(t plan.Tunnel) bool { return cut[t.Device] })
	p.LANs = slices.Clone(p.LANs)
	for i := range p.LANs {
		p.LANs[i].Ports = slices.DeleteFunc(slices.Clone(p.LANs[i].Ports), func(d string) bool { return cut[d] })
	}
	return &p
}

// loopback is the name of a node's own device in faults.
const loopback = "lo"
