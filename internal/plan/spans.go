package plan

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"trellis/internal/tunnel"
	"trellis/internal/vnet"
)

// Span names the path of a link between two substrate nodes, the same from both
// sides. Each span has an EGRE key of its own. A point-to-point link with another
// end is another span, so that nothing is accepted from the old one any more.
func Span(l *vnet.Link, a, b string) string {
	span := l.Name + "|" + min(a, b) + "|" + max(a, b)
	if l.Type == vnet.PointToPoint {
		ends := [2]string{}
		for i, e := range l.Endpoints {
			ends[i] = e.Node + ":" + e.Name
		}
		slices.Sort(ends[:])
		span += "|" + ends[0] + "|" + ends[1]
	}
	return span
}

// Spans lists the spans of a VNet placed so: one for each
// link and pair of substrate nodes that it has ends on, in the order of the
// links.
func Spans(v *vnet.VNet, placement map[string]string) []string {
	var spans []string
	for i := range v.Links {
		hosts := linkHosts(&v.Links[i], placement)
		for j, a := range hosts {
			for _, b := range hosts[j+1:] {
				spans = append(spans, Span(&v.Links[i], a, b))
			}
		}
	}
	return spans
}

// linkHosts lists the substrate nodes that a link has ends on, sorted.
func linkHosts(l *vnet.Link, placement map[string]string) []string {
	hosts := make([]string, 0, 2)
	for i := range l.Endpoints {
		if h := placement[l.Endpoints[i].Node]; !slices.Contains(hosts, h) {
			hosts = append(hosts, h)
		}
	}
	slices.Sort(hosts)
	return hosts
}

// path is how frames get from one substrate node to another.
type path struct {
	local, remote netip.Addr // of one family
	mtu           int        // of the largest IP packet inside, bytes
	why           string     // of the MTU, for people
}

// findPath chooses the outer addresses: IPv4 where both machines have it.
func findPath(here, there string, hosts map[string]Host) (path, error) {
	a, b := hosts[here], hosts[there]
	first, second := min(here, there), max(here, there)
	for _, host := range []string{first, second} {
		if len(hosts[host].Addrs) == 0 {
			return path{}, fmt.Errorf("it goes from %s to %s, and %s has no uplink; give it one in its configuration, or place the link's nodes on one machine",
				first, second, host)
		}
	}
	narrow, mtu := here, a.MTU
	if b.MTU < mtu || b.MTU == mtu && there < here {
		narrow, mtu = there, b.MTU
	}
	for _, family := range []struct {
		name     string
		of       func(netip.Addr) bool
		overhead int
	}{{"IPv4", netip.Addr.Is4, tunnel.OverheadIPv4}, {"IPv6", netip.Addr.Is6, tunnel.OverheadIPv6}} {
		i, j := slices.IndexFunc(a.Addrs, family.of), slices.IndexFunc(b.Addrs, family.of)
		if i >= 0 && j >= 0 {
			return path{
				local: a.Addrs[i], remote: b.Addrs[j], mtu: mtu - family.overhead,
				why: fmt.Sprintf("the underlay's MTU is %d at %s, and EGRE over %s takes %d", mtu, narrow, family.name, family.overhead),
			}, nil
		}
	}
	return path{}, fmt.Errorf("it goes from %s to %s, and their uplinks have addresses of different families (%s and %s); give one of them an address of the other's",
		first, second, hosts[first].Addrs[0], hosts[second].Addrs[0])
}

// FitLinks sets the automatic MTUs, to what the paths of the links carry:
// on one substrate node [vnet.DefaultMTU], between several the least of the MTUs
// of their paths, and at most as much.
//
// Its error is a sentence for people for each link that cannot be: between
// machines without a path to each other, with a larger MTU than its path
// carries, or with IPv6 on a path too narrow for it. The VNet is then left
// half-changed.
func FitLinks(v *vnet.VNet, placement map[string]string, hosts map[string]Host) error {
	var errs []error
	for i := range v.Links {
		l := &v.Links[i]
		if err := fitLink(l, linkHosts(l, placement), hosts); err != nil {
			errs = append(errs, fmt.Errorf("link %s: %w", l.Name, err))
		}
		if len(errs) == maxUnfit {
			break
		}
	}
	return errors.Join(errs...)
}

// maxUnfit bounds how many links FitLinks complains of: all have one reason,
// most often.
const maxUnfit = 10

func fitLink(l *vnet.Link, on []string, hosts map[string]Host) error {
	least := path{mtu: vnet.MaxMTU}
	for i, a := range on {
		for _, b := range on[i+1:] {
			w, err := findPath(a, b, hosts)
			if err != nil {
				return err
			}
			if w.mtu < least.mtu {
				least = w
			}
		}
	}
	for i := range l.Endpoints {
		e := &l.Endpoints[i]
		if e.AutoMTU {
			e.MTU = min(least.mtu, vnet.DefaultMTU)
		}
		ipv6 := slices.ContainsFunc(e.Addrs, func(p netip.Prefix) bool { return p.Addr().Is6() })
		switch {
		case e.MTU > least.mtu:
			return fmt.Errorf("it goes from machine to machine, which leaves an MTU of %d (%s), and %s:%s asks for %d; leave mtu out, or give at most %d",
				least.mtu, least.why, e.Node, e.Name, e.MTU, least.mtu)
		case e.AutoMTU && ipv6 && e.MTU < vnet.MinMTUIPv6:
			return fmt.Errorf("it carries IPv6, which needs an MTU of %d, and its path from machine to machine leaves %d (%s); widen the underlay, or leave IPv6 out of addressing",
				vnet.MinMTUIPv6, least.mtu, least.why)
		case e.AutoMTU && e.MTU < vnet.MinMTU:
			return fmt.Errorf("its path from machine to machine leaves an MTU of %d (%s), and IPv4 needs %d; widen the underlay", least.mtu, least.why, vnet.MinMTU)
		}
	}
	return nil
}
