package underlay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"trellis/internal/substrate/netns"
	"trellis/internal/substrate/rtnl"
	"trellis/internal/tunnel"
)

const (
	// debounce is how long changes are gathered before they are looked at.
	debounce = 5 * time.Millisecond
	// again is when what could not be resolved is tried once more.
	retryEvery = time.Second
)

// Tunnel is an EGRE path in use.
type Tunnel struct {
	tunnel.Endpoints
	Key uint32
}

// State is a route, or why there is none now.
type State struct {
	Route tunnel.Route
	Err   error // one sentence; nil: Route is good
}

// same reports whether two states say the same.
func (s State) same(o State) bool {
	return s.Route == o.Route && (s.Err == nil) == (o.Err == nil) && (s.Err == nil || s.Err.Error() == o.Err.Error())
}

// Underlay resolves the routes of tunnels in the network namespace that it was
// opened in, and watches them. Its methods may be called from several goroutines.
type Underlay struct {
	monitor *rtnl.Monitor
	icmp    []*listener
	ns      *netns.NS
	changes chan struct{}
	dirty   chan struct{}
	running sync.WaitGroup
	stop    context.CancelFunc

	mu         sync.Mutex
	conn       *rtnl.Conn
	uplinks    map[string]bool     // by name
	used       map[string][]Tunnel // by owner
	states     map[tunnel.Endpoints]State
	interfaces map[string]Interface // of the uplinks, by name
	hops       map[hop]bool         // the neighbours that are kept resolved; true: it does not answer
	narrow     map[tunnel.Endpoints]narrow
	claims     map[tunnel.Endpoints]time.Time // when the next is heard; zero: one is being checked
	log        *slog.Logger                   // nil: nobody reads
	round      chan struct{}                  // closed when the states were looked at again
	// changed are the tunnels' endpoints whose state is another since Changed was
	// called last; everything: an interface of an uplink is, too.
	changed    map[tunnel.Endpoints]bool
	everything bool
}

// Open opens the underlay of the calling thread's network namespace. Ways that
// leave by other interfaces than the uplinks are no routes.
func Open(uplinks []string) (_ *Underlay, err error) {
	u := &Underlay{
		changes: make(chan struct{}, 1), dirty: make(chan struct{}, 1),
		uplinks: map[string]bool{}, used: map[string][]Tunnel{}, states: map[tunnel.Endpoints]State{},
		hops: map[hop]bool{}, narrow: map[tunnel.Endpoints]narrow{}, claims: map[tunnel.Endpoints]time.Time{}, round: make(chan struct{}), changed: map[tunnel.Endpoints]bool{},
	}
	for _, name := range uplinks {
		u.uplinks[name] = true
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("watch the underlay: %w", err), u.Close())
		}
	}()
	if u.ns, err = netns.OfThread(); err != nil {
		return nil, err
	}
	if u.conn, err = rtnl.Dial(); err != nil {
		return nil, err
	}
	u.monitor, err = rtnl.Listen(unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
		unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE)
	if err != nil {
		return nil, err
	}
	if u.icmp, err = listen(); err != nil {
		return nil, err
	}
	if err = u.adoptHops(); err != nil {
		return nil, err
	}
	for began := time.Now(); ; time.Sleep(time.Millisecond) {
		var pending bool
		if u.interfaces, pending, err = u.inspect(); err != nil {
			return nil, err
		}
		if !pending || time.Since(began) > localWithin {
			break
		}
	}
	ctx, stop := context.WithCancel(context.Background())
	u.stop = stop
	u.running.Add(2 + len(u.icmp))
	go u.watch()
	go u.run(ctx)
	for _, l := range u.icmp {
		go u.receiveICMP(ctx, l)
	}
	return u, nil
}

// Close ends the watch. The neighbours stay resolved: tunnels outlive it.
func (u *Underlay) Close() error {
	if u.stop != nil {
		u.stop()
	}
	var errs []error
	if u.monitor != nil {
		errs = append(errs, u.monitor.Close())
	}
	for _, l := range u.icmp {
		errs = append(errs, l.Close())
	}
	u.running.Wait()
	if u.conn != nil {
		errs = append(errs, u.conn.Close())
	}
	if u.ns != nil {
		errs = append(errs, u.ns.Close())
	}
	return errors.Join(errs...)
}

// LogTo has what is odd about the underlay written to a log.
func (u *Underlay) LogTo(log *slog.Logger) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.log = log
}

// Changes gives a value after routes, uplinks or addresses have changed; several
// changes may give one. It has one reader.
func (u *Underlay) Changes() <-chan struct{} { return u.changes }

// Changed gives the endpoints of the tunnels whose state has changed since it was
// called last; everything tells that an uplink's interface has, which any tunnel
// may depend on.
func (u *Underlay) Changed() (ends map[tunnel.Endpoints]bool, everything bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	ends, everything = u.changed, u.everything
	u.changed, u.everything = map[tunnel.Endpoints]bool{}, false
	return ends, everything
}

// Use says which tunnels an owner has, instead of those that it said before.
// Their routes are watched from now on; a router's word about the size of packets
// is heard for them alone.
func (u *Underlay) Use(owner string, tunnels []Tunnel) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if slices.Equal(tunnels, u.used[owner]) {
		return
	}
	if len(tunnels) == 0 {
		delete(u.used, owner)
	} else {
		u.used[owner] = slices.Clone(tunnels)
	}
	u.wake()
}

// Resolve gives the routes of tunnels that are used, and waits for those that
// there are none of yet until there are or ctx ends. What it waits for, and how
// long, is the caller's choice; a route may also come later: see Changes.
func (u *Underlay) Resolve(ctx context.Context, ends []tunnel.Endpoints) map[tunnel.Endpoints]State {
	for {
		u.mu.Lock()
		round, complete := u.round, true
		found := make(map[tunnel.Endpoints]State, len(ends))
		for _, e := range ends {
			s, ok := u.states[e]
			if !ok {
				s.Err = fmt.Errorf("the route to %v is not looked up yet", e.Remote)
			}
			found[e] = s
			complete = complete && s.Err == nil
		}
		u.mu.Unlock()
		if complete {
			return found
		}
		select {
		case <-round:
		case <-ctx.Done():
			return found
		}
	}
}

// State gives the route between the endpoints of a tunnel that is used, as last
// looked up; false: it was not yet.
func (u *Underlay) State(e tunnel.Endpoints) (State, bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	s, ok := u.states[e]
	return s, ok
}

// States gives the routes of all tunnels that are used, as last looked up.
func (u *Underlay) States() map[tunnel.Endpoints]State {
	u.mu.Lock()
	defer u.mu.Unlock()
	return maps.Clone(u.states)
}

// wake has the states looked at soon.
func (u *Underlay) wake() {
	select {
	case u.dirty <- struct{}{}:
	default:
	}
}

// watch wakes run when the kernel tells of a change that may matter.
func (u *Underlay) watch() {
	defer u.running.Done()
	for {
		matters := false
		err := u.monitor.Receive(func(typ uint16, body []byte) { matters = matters || u.relevant(typ, body) })
		switch {
		case err == nil && !matters:
			continue
		case errors.Is(err, os.ErrClosed):
			return
		}
		u.wake() // an error: something was missed
	}
}

// relevant tells whether a notification may be about a route in use. What happens to the
// ports and bridges of virtual networks, thousands of them, is not.
func (u *Underlay) relevant(typ uint16, body []byte) bool {
	switch typ {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		l := rtnl.ParseLink(body)
		return u.uplinks[l.Name] || l.Index == loopback
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		return u.routeRelevant(body)
	case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
		return u.hopRelevant(body)
	}
	return true
}

// loopback is the index of lo in every network namespace.
const loopback = 1

// run looks at the states again whenever it is woken, and while one has none.
func (u *Underlay) run(ctx context.Context) {
	defer u.running.Done()
	timer := time.NewTimer(retryEvery)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-u.dirty:
			select {
			case <-ctx.Done():
				return
			case <-time.After(debounce):
			}
			select { // what came meanwhile
			case <-u.dirty:
			default:
			}
		}
		changed, next := u.refresh()
		if changed {
			select {
			case u.changes <- struct{}{}:
			default:
			}
		}
		timer.Stop()
		if next > 0 {
			timer.Reset(next)
		}
	}
}

// refresh looks every route up. It tells whether anything is not as before, and
// after which time to look again whatever happens; 0: never.
func (u *Underlay) refresh() (changed bool, next time.Duration) {
	u.mu.Lock()
	defer u.mu.Unlock()
	states := map[tunnel.Endpoints]State{}
	hops := map[hop]bool{}
	now := time.Now()
	for _, tunnels := range u.used {
		for _, t := range tunnels {
			if _, ok := states[t.Endpoints]; ok {
				continue
			}
			s := u.state(t.Endpoints, hops, now)
			states[t.Endpoints] = s
			if s.Err != nil {
				next = retryEvery
			}
		}
	}
	for e, n := range u.narrow {
		left := n.until.Sub(now)
		if left <= 0 || !u.usedEnds(e) {
			delete(u.narrow, e)
		} else if next == 0 || left < next {
			next = left
		}
	}
	for e, rest := range u.claims {
		if !rest.IsZero() && now.After(rest) {
			delete(u.claims, e)
		}
	}
	for e, s := range states {
		if old, ok := u.states[e]; !ok || !s.same(old) {
			changed, u.changed[e] = true, true
		}
	}
	for e := range u.states {
		if _, ok := states[e]; !ok {
			changed = true
			delete(u.changed, e) // nobody uses it any more
		}
	}
	u.states = states
	interfaces, pending, err := u.inspect()
	if err != nil || pending {
		next = retryEvery
	}
	if err == nil {
		if !maps.EqualFunc(interfaces, u.interfaces, Interface.same) {
			changed, u.everything = true, true
		}
		u.interfaces = interfaces
	}
	if err := u.releaseUnused(hops); err != nil && next == 0 {
		next = retryEvery
	}
	close(u.round)
	u.round = make(chan struct{})
	return changed, next
}

func (u *Underlay) usedEnds(e tunnel.Endpoints) bool {
	for _, tunnels := range u.used {
		for _, t := range tunnels {
			if t.Endpoints == e {
				return true
			}
		}
	}
	return false
}

// state looks one route up, and adds its next hop to hops.
func (u *Underlay) state(e tunnel.Endpoints, hops map[hop]bool, now time.Time) State {
	r, err := u.route(e)
	if err != nil {
		return State{Err: err}
	}
	l, err := u.conn.Link(r.uplink, "")
	switch {
	case errors.Is(err, unix.ENODEV):
		return State{Err: fmt.Errorf("the uplink to %v has gone", e.Remote)}
	case err != nil:
		return State{Err: fmt.Errorf("read the uplink to %v: %w", e.Remote, err)}
	case !u.uplinks[l.Name]:
		return State{Err: fmt.Errorf("the route to %v leaves by %s, which is no uplink of this machine; name it in the configuration, or correct the route", e.Remote, l.Name)}
	case !l.Up():
		return State{Err: fmt.Errorf("the uplink %s to %v is down", l.Name, e.Remote)}
	case !l.Carrier():
		return State{Err: fmt.Errorf("the uplink %s to %v has no carrier", l.Name, e.Remote)}
	}
	h := hop{index: r.uplink, addr: r.next}
	hops[h] = true
	mac, err := u.resolve(h)
	if err != nil {
		return State{Err: fmt.Errorf("%v on %s, the next hop to %v, %w", r.next, l.Name, e.Remote, err)}
	}
	route := tunnel.Route{Uplink: r.uplink, Source: l.MAC, NextHop: mac, MTU: l.MTU}
	if r.mtu > 0 {
		route.MTU = min(route.MTU, r.mtu)
	}
	if n, ok := u.narrow[e]; ok && n.mtu < route.MTU && n.until.After(now) {
		route.MTU, route.Narrow = n.mtu, true
	}
	return State{Route: route}
}
