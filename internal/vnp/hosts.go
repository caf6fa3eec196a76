package vnp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"trellis/internal/agentapi"
	"trellis/internal/plan"
	"trellis/internal/store"
)

// prepare has the substrate node that a plan is for look at it, before it is
// committed.
func (s *Service) prepare(ctx context.Context, p *plan.Plan) error {
	sub, err := s.agents(ctx, p.Host)
	if err != nil {
		return err
	}
	return sub.Prepare(ctx, p)
}

// hostOf is the substrate node that a node is placed on.
func (s *Service) hostOf(rec *store.VNetRecord, node string) string {
	if host := rec.Placement[node]; host != "" {
		return host
	}
	return s.host // stored before nodes were placed
}

// hostsOf are the substrate nodes that have a part of the VNet.
func (s *Service) hostsOf(rec *store.VNetRecord) []string {
	if len(rec.Hosts) == 0 {
		return []string{s.host}
	}
	return rec.Hosts
}

// each calls f with the agent of each substrate node, side by side, and gives
// the errors by host; those that could not be reached are among them.
func (s *Service) each(ctx context.Context, hosts []string, f func(host string, sub agentapi.Agent) error) map[string]error {
	var mu sync.Mutex
	var wg sync.WaitGroup
	failed := map[string]error{}
	for _, host := range hosts {
		wg.Go(func() {
			sub, err := s.agents(ctx, host)
			if err == nil {
				err = f(host, sub)
			}
			if err != nil {
				mu.Lock()
				defer mu.Unlock()
				failed[host] = err
			}
		})
	}
	wg.Wait()
	return failed
}

// sweep removes on every substrate node that is alive what no VNet owns. One
// that comes back does so itself.
func (s *Service) sweep(ctx context.Context) error {
	hosts, err := s.store.Hosts(ctx)
	if err != nil {
		return err
	}
	names := alive(hosts)
	if len(hosts) == 0 {
		names = []string{s.host}
	}
	failed := s.each(ctx, names, func(_ string, sub agentapi.Agent) error { return sub.SweepAll(ctx) })
	var errs []error
	for _, host := range slices.Sorted(maps.Keys(failed)) {
		errs = append(errs, fmt.Errorf("remove what no VNet owns from %s: %w", host, failed[host]))
	}
	return errors.Join(errs...)
}
