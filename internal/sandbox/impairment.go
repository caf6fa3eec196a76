package sandbox

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Where injected faults are in the fabric's policy rules, and the tables that they
// name. The kernel is the only place that knows of it.
const (
	cutPriority    = 100  // rules that drop what one host sends another
	narrowPriority = 200  // rules for what a host sends over a narrowed path
	narrowTable    = 1000 // and the index of the host
)

// leastNarrowed is the least MTU of a path: IPv6's (RFC 8200, section 5).
const leastNarrowed = 1280

// Impairment is the faults injected on a host's path through the underlay.
type Impairment struct {
	Cut   []string                 // hosts that it cannot reach, nor they it
	Delay map[string]time.Duration // one way, to and from a host
	MTU   int                      // of its path to all others; 0: the underlay's
}

// Cut lets no packet pass between two hosts; without the second one, between the
// first and all others. The links' carrier stays, as if the cut was far away.
func (p Place) Cut(ctx context.Context, sandbox, a, b string) error {
	return p.change(ctx, sandbox, func(u *underlay) error {
		pairs, err := u.pairs(a, b)
		if err != nil {
			return err
		}
		return u.cut(pairs, true)
	})
}

// Delay delays all packets between two hosts, one way and the other; without the
// second one, between the first and all others. Zero ends it. The kernel must
// have netem.
func (p Place) Delay(ctx context.Context, sandbox, a, b string, delay time.Duration) error {
	return p.change(ctx, sandbox, func(u *underlay) error {
		pairs, err := u.pairs(a, b)
		if err != nil {
			return err
		}
		return u.delay(pairs, delay)
	})
}

// Narrow gives the path between a host and all others a lower MTU, in bytes. The
// fabric refuses longer packets as a router does: "fragmentation needed" (RFC
// 1191), "packet too big" (RFC 8201).
func (p Place) Narrow(ctx context.Context, sandbox, host string, mtu int) error {
	return p.change(ctx, sandbox, func(u *underlay) error {
		i, err := u.spec.index(host)
		if err != nil {
			return err
		}
		if most := u.spec.Underlay.MTU; mtu < leastNarrowed || mtu > most {
			return fmt.Errorf("a path's MTU of %d is out of reach; give %d to %d, the underlay's own", mtu, leastNarrowed, most)
		}
		return u.narrow(i, mtu)
	})
}

// Heal undoes all cuts and delays between two hosts; without the second one,
// between the first and all others, and the first one's MTU is the underlay's
// again. Without any it heals all hosts.
func (p Place) Heal(ctx context.Context, sandbox, a, b string) error {
	return p.change(ctx, sandbox, func(u *underlay) error {
		if a != "" {
			return u.heal(a, b)
		}
		var errs []error
		for _, h := range u.spec.Hosts {
			errs = append(errs, u.heal(h.Name, ""))
		}
		return errors.Join(errs...)
	})
}

func (u *underlay) heal(a, b string) error {
	i, err := u.spec.index(a)
	if err != nil {
		return err
	}
	var pairs []pair
	if b != "" || len(u.spec.Hosts) > 1 {
		if pairs, err = u.pairs(a, b); err != nil {
			return err
		}
	}
	if err := errors.Join(u.cut(pairs, false), u.delay(pairs, 0)); err != nil || b != "" {
		return err
	}
	return u.narrow(i, u.spec.Underlay.MTU)
}

// change does something to the underlay of a sandbox, alone.
func (p Place) change(ctx context.Context, sandbox string, f func(*underlay) error) error {
	p, err := p.absolute()
	if err != nil {
		return err
	}
	unlock, err := p.lock(ctx, func(string) {})
	if err != nil {
		return err
	}
	defer unlock()
	name, err := p.pick(sandbox)
	if err != nil {
		return err
	}
	s, err := p.paths(name).spec(name)
	if err != nil {
		return err
	}
	u, err := openUnderlay(p.paths(name), s)
	if err != nil {
		return err
	}
	defer u.close()
	return f(u)
}

// pair is two hosts, by their index.
type pair struct{ a, b int }

// pairs gives the pair that is meant, or with one name all that it is in.
func (u *underlay) pairs(a, b string) ([]pair, error) {
	i, err := u.spec.index(a)
	if err != nil {
		return nil, err
	}
	if b != "" {
		j, err := u.spec.index(b)
		if err != nil {
			return nil, err
		}
		if i == j {
			return nil, fmt.Errorf("nothing of the underlay is between %s and itself; name two hosts", a)
		}
		return []pair{{i, j}}, nil
	}
	var all []pair
	for j := range u.spec.Hosts {
		if j != i {
			all = append(all, pair{i, j})
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s is the only host of sandbox %s", a, u.spec.Name)
	}
	return all, nil
}

// cut sets or removes the rules that drop what the hosts of each pair send each
// other.
func (u *underlay) cut(pairs []pair, on bool) error {
	h, err := u.fabric.netlink()
	if err != nil {
		return err
	}
	defer h.Close()
	for _, p := range pairs {
		for _, way := range []pair{p, {p.b, p.a}} {
			for _, to := range u.spec.Underlay.link(way.b).host {
				r := netlink.NewRule()
				r.Priority, r.Family, r.Protocol = cutPriority, family(to), protocol
				r.IifName, r.Dst = u.spec.Hosts[way.a].Name, single(to)
				r.Type = unix.FR_ACT_BLACKHOLE
				if err := setRule(h, r, on); err != nil {
					return fmt.Errorf("cut %s from %s: %w", r.IifName, to, err)
				}
			}
		}
	}
	return nil
}

// setRule makes a rule be there, or not.
func setRule(h *netlink.Handle, r *netlink.Rule, on bool) error {
	if on {
		if err := h.RuleAdd(r); err != nil && !errors.Is(err, syscall.EEXIST) {
			return err
		}
		return nil
	}
	if err := h.RuleDel(r); err != nil && !errors.Is(err, syscall.ENOENT) {
		return err
	}
	return nil
}

// narrow gives the path of one host a MTU.
//
// The routes to the host carry it, locked, for the fabric to go by when it
// forwards (ip_dst_mtu_maybe_forward of include/net/ip.h, and the same of
// ip6_route.h). What the host sends is routed by a table of its own, in which
// the routes to all others carry it.
func (u *underlay) narrow(host, mtu int) error {
	h, err := u.fabric.netlink()
	if err != nil {
		return err
	}
	defer h.Close()
	mtus, err := u.mtus(h)
	if err != nil {
		return err
	}
	mtus[host] = mtu
	devices := make([]int, len(mtus))
	for i := range mtus {
		l, err := h.LinkByName(u.spec.Hosts[i].Name)
		if err != nil {
			return err
		}
		devices[i] = l.Attrs().Index
		for _, to := range u.spec.Underlay.link(i).host {
			if err := h.RouteReplace(u.route(unix.RT_TABLE_MAIN, devices[i], single(to), mtus[i])); err != nil {
				return fmt.Errorf("set the MTU of the path to %s: %w", u.spec.Hosts[i].Name, err)
			}
		}
	}
	for i, own := range mtus {
		for k := range u.spec.Underlay.link(i).host {
			if err := u.narrowFrom(h, i, k, own, mtus, devices); err != nil {
				return fmt.Errorf("set the MTU of the path from %s: %w", u.spec.Hosts[i].Name, err)
			}
		}
	}
	return nil
}

// narrowFrom sets up what a host sends in one family, the k-th.
func (u *underlay) narrowFrom(h *netlink.Handle, from, k, own int, mtus, devices []int) error {
	table := narrowTable + from
	narrowed := own < u.spec.Underlay.MTU
	for i := range mtus {
		if i == from || !narrowed {
			continue
		}
		to := u.spec.Underlay.link(i).host[k]
		if err := h.RouteReplace(u.route(table, devices[i], single(to), min(own, mtus[i]))); err != nil {
			return err
		}
	}
	r := netlink.NewRule()
	r.Priority, r.Family, r.Protocol = narrowPriority+from, family(u.spec.Underlay.link(from).host[k]), protocol
	r.IifName, r.Table = u.spec.Hosts[from].Name, table
	return setRule(h, r, narrowed)
}

// route gives a route of the fabric; at the underlay's own MTU it carries none.
func (u *underlay) route(table, device int, to *net.IPNet, mtu int) *netlink.Route {
	r := &netlink.Route{Table: table, LinkIndex: device, Dst: to, Scope: netlink.SCOPE_LINK, Protocol: protocol}
	if mtu < u.spec.Underlay.MTU {
		r.MTU, r.MTULock = mtu, true
	}
	return r
}

// mtus reads the MTU of each host's path.
func (u *underlay) mtus(h *netlink.Handle) ([]int, error) {
	mtus := make([]int, len(u.spec.Hosts))
	for i := range mtus {
		mtus[i] = u.spec.Underlay.MTU
		to := u.spec.Underlay.link(i).host[0]
		routes, err := h.RouteListFiltered(family(to), &netlink.Route{Dst: single(to), Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_DST|netlink.RT_FILTER_TABLE)
		if err != nil {
			return nil, fmt.Errorf("read the MTU of the path to %s: %w", u.spec.Hosts[i].Name, err)
		}
		for _, r := range routes {
			if r.MTU > 0 && r.Protocol == protocol {
				mtus[i] = r.MTU
			}
		}
	}
	return mtus, nil
}

// impairments reads the injected faults of each host.
func (u *underlay) impairments() ([]Impairment, error) {
	h, err := u.fabric.netlink()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	all := make([]Impairment, len(u.spec.Hosts))
	mtus, err := u.mtus(h)
	if err != nil {
		return nil, err
	}
	owner := map[string]string{} // host by address
	for i, host := range u.spec.Hosts {
		if mtus[i] < u.spec.Underlay.MTU {
			all[i].MTU = mtus[i]
		}
		for _, a := range u.spec.Underlay.link(i).host {
			owner[a.String()] = host.Name
		}
	}
	rules, err := h.RuleList(unix.AF_UNSPEC)
	if err != nil {
		return nil, fmt.Errorf("read the cuts: %w", err)
	}
	for _, r := range rules {
		if r.Priority != cutPriority || r.Dst == nil {
			continue
		}
		i, err := u.spec.index(r.IifName)
		if err != nil {
			continue // a rule of somebody else's
		}
		if other := owner[r.Dst.IP.String()]; other != "" && !slices.Contains(all[i].Cut, other) {
			all[i].Cut = append(all[i].Cut, other)
		}
	}
	delays, err := u.delays(h)
	if err != nil {
		return nil, err
	}
	for way, d := range delays {
		t := &all[way.b]
		if t.Delay == nil {
			t.Delay = map[string]time.Duration{}
		}
		t.Delay[u.spec.Hosts[way.a].Name] = d
	}
	for i := range all {
		slices.Sort(all[i].Cut)
	}
	return all, nil
}

// String says it in a few words; empty where nothing is wrong.
func (t Impairment) String() string {
	var parts []string
	if len(t.Cut) > 0 {
		parts = append(parts, "cut from "+strings.Join(t.Cut, ", "))
	}
	var delays []string
	for host, d := range t.Delay {
		delays = append(delays, fmt.Sprintf("%s from %s", d, host))
	}
	if slices.Sort(delays); len(delays) > 0 {
		parts = append(parts, "delayed "+strings.Join(delays, ", "))
	}
	if t.MTU > 0 {
		parts = append(parts, fmt.Sprintf("MTU %d", t.MTU))
	}
	return strings.Join(parts, "; ")
}
