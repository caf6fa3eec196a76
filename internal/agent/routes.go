package agent

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"trellis/internal/plan"
	"trellis/internal/store"
	"trellis/internal/substrate/netns"
)

// How often FIBs are looked at while routes are awaited: soon at first, then
// never so often that looking costs more than half of the time.
const (
	firstLook   = 25 * time.Millisecond
	longestLook = time.Second
)

// awaitRoutes returns when every node of a routing group has a route to each of
// the group's loopbacks, in the kernel and so whatever the protocol.
func (w *worker) awaitRoutes(ctx context.Context, want *plan.Plan, changed func() bool) error {
	open := map[string]*plan.Node{}
	for i := range want.Nodes {
		if n := &want.Nodes[i]; len(n.Components) > 0 && !w.held[n.Name] {
			open[n.Name] = n
		}
	}
	total := len(open)
	spaces := map[string]*netns.NS{}
	defer func() {
		for _, ns := range spaces {
			ns.Close()
		}
	}()
	states, err := w.a.containers.List(ctx)
	if err != nil {
		return err
	}
	for _, s := range states {
		if s.VNet != w.vnet || open[s.Node] == nil || !s.Running {
			continue
		}
		ns, err := netns.OfPid(s.Pid)
		if err != nil {
			if gone(err) {
				continue
			}
			return err
		}
		spaces[s.Node] = ns
	}
	pause, due := firstLook, w.restartDue()
	for len(open) > 0 {
		began := time.Now()
		missing, err := lookAtRoutes(want, open, spaces)
		if err != nil {
			return err
		}
		w.report.update(false, func(s *store.Status) {
			s.Converged, s.Routers = total-len(open), total
			s.Missing, s.MissingNodes = missing, len(open)
		})
		if len(open) == 0 {
			break
		}
		pause = min(max(pause*5/4, time.Since(began)), longestLook)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.wake:
			w.poke() // the loop in run looks why
			return nil
		case <-due: // what is missing may be the way to the node that waits
			return nil
		case <-time.After(pause):
		}
		if changed() {
			return errOvertaken
		}
	}
	w.report.update(false, func(s *store.Status) { s.Converged, s.Routers = total, total })
	w.report.phase(store.PhaseConverged)
	return nil
}

// lookAtRoutes removes the nodes that miss nothing from open and tells what the
// others miss.
func lookAtRoutes(want *plan.Plan, open map[string]*plan.Node, spaces map[string]*netns.NS) ([]store.Missing, error) {
	type result struct {
		node    string
		missing []string
		count   int
	}
	results := make(chan result, len(open))
	var g errgroup.Group
	g.SetLimit(parallel())
	for name, n := range open {
		g.Go(func() error {
			r := result{node: name}
			var fib *netns.FIB
			if ns := spaces[name]; ns != nil {
				var err error
				if fib, err = ns.FIB(); err != nil {
					return fmt.Errorf("read the routes of %s/%s: %w", want.VNet, name, err)
				}
			}
			for _, c := range n.Components {
				for _, a := range want.Destinations[c] {
					if fib != nil && (own(n, a) || fib.Covers(a)) {
						continue
					}
					if r.count++; r.count <= store.MaxMissingPrefixes {
						r.missing = append(r.missing, netip.PrefixFrom(a, a.BitLen()).String())
					}
				}
			}
			results <- r
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	close(results)
	var missing []store.Missing
	for r := range results {
		if r.count == 0 {
			delete(open, r.node)
		} else {
			missing = append(missing, store.Missing{Node: r.node, Prefixes: r.missing, Count: r.count})
		}
	}
	slices.SortFunc(missing, func(a, b store.Missing) int { return strings.Compare(a.Node, b.Node) })
	return missing[:min(len(missing), store.MaxMissing)], nil
}

// own reports whether a is one of the node's own loopbacks.
func own(n *plan.Node, a netip.Addr) bool {
	for _, p := range n.Loopbacks {
		if p.Addr() == a {
			return true
		}
	}
	return false
}
