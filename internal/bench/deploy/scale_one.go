package deploy

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"trellis/internal/bench"
	"trellis/internal/vnet"
)

// Adoption, after the service was killed.
const (
	// flowBefore is how long the flow has gone on when the service is killed.
	flowBefore = 2 * time.Second
	// quietFor is how long the service takes less than quietShare of a core once
	// it has looked at everything that it found.
	quietFor   = 3 * time.Second
	quietShare = 0.1
	// adoptionTime bounds the wait for that.
	adoptionTime = 3 * time.Minute
)

// adopt kills the service and starts it again, while a flow goes through the
// nodes of one network.
func (s *scale) adopt(ctx context.Context) (err error) {
	s.part.about(s.up)
	more, err := oneMore()
	if err != nil {
		return err
	}
	defer s.removeQuietly(ctx, more)
	if _, err := s.measurement(more, false).apply(ctx, more, nil); err != nil {
		return fmt.Errorf("up of %s: %w", more.Name, err)
	}
	before, err := s.service.processes()
	if err != nil {
		return err
	}
	far := len(more.VNet.Nodes) / 2 // of a ring
	f, err := startFlow(ctx, s.service.Client(), more.VNet.Name, more.VNet.Nodes[0].Name, more.VNet.Nodes[far].Name)
	if err != nil {
		return err
	}
	defer func() {
		sent, lost, e := f.end()
		err = errors.Join(err, e)
		s.part.add("sent", "datagrams sent through 9 nodes meanwhile", "", float64(sent))
		s.part.add("lost", "... that were lost", "", float64(lost))
		if lost > 0 {
			s.part.fail("%d of %d datagrams were lost", lost, sent)
		}
	}()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(flowBefore):
	}
	s.progress(0, 0, "the service is killed and started again")
	if err := s.service.Kill(); err != nil {
		return fmt.Errorf("kill the service: %w", err)
	}
	start := time.Now()
	if err := s.service.Restart(ctx); err != nil {
		return fmt.Errorf("start the service again: %w", err)
	}
	s.part.add("answers", "from the start until the service answers", "s", time.Since(start).Seconds())
	if err := s.adopted(ctx, start); err != nil {
		return err
	}
	changed, err := s.measurement(more, false).apply(ctx, more, nil)
	if err != nil {
		return fmt.Errorf("up of %s after the start: %w", more.Name, err)
	}
	if n := changed.GetChanges(); n > 0 {
		s.part.fail("an unchanged up took %d steps after the start", n)
	}
	after, err := s.service.processes()
	if err != nil {
		return err
	}
	gone := 0
	for pid := range before {
		if !after[pid] {
			gone++
		}
	}
	s.part.add("ended", "processes of nodes that ended", "", float64(gone))
	if gone > 0 {
		s.part.fail("%d of %d processes of nodes have ended", gone, len(before))
	}
	return nil
}

// adopted waits until every network is in place again as the service tells, and
// the service has nothing more to do.
func (s *scale) adopted(ctx context.Context, start time.Time) error {
	ctx, cancel := context.WithTimeoutCause(ctx, adoptionTime, fmt.Errorf("not everything is adopted after %s", adoptionTime))
	defer cancel()
	for {
		networks, err := s.list(ctx)
		if err != nil {
			return err
		}
		pending, why := 0, ""
		for _, n := range networks {
			if n.GetState() != "running" {
				pending++
				why = fmt.Sprintf("%s is %s: %s", n.GetName(), n.GetState(), n.GetMessage())
			}
		}
		if pending == 0 {
			break
		}
		s.progress(len(networks)-pending, len(networks), "%s", why)
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %s", context.Cause(ctx), why)
		case <-time.After(200 * time.Millisecond):
		}
	}
	s.part.add("running", "... every network is in place", "s", time.Since(start).Seconds())
	const step = 250 * time.Millisecond
	quiet := time.Now()
	for last := math.NaN(); time.Since(quiet) < quietFor; {
		used, err := bench.ProcessCPU(s.service.PID())
		if err != nil {
			return err
		}
		if !(used-last < quietShare*step.Seconds()) { // the first time, too
			quiet = time.Now()
		}
		last = used
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(step):
		}
	}
	s.part.add("adopted", "... and it has nothing more to do", "s", quiet.Sub(start).Seconds())
	return nil
}

// grid measures one network of so many nodes, with connected routes.
func (s *scale) grid(ctx context.Context) error {
	side := int(math.Sqrt(float64(min(s.Nodes, 10000))))
	v, err := Grid(side, side, vnet.Routing{Protocol: vnet.None})
	if err != nil {
		return err
	}
	return s.alone(ctx, Case{Name: v.Name, Source: "grid", VNet: v})
}

// kdl measures the largest of the given networks with FRR and OSPF for both
// families.
func (s *scale) kdl(ctx context.Context) error {
	var largest *Case
	for i, c := range s.Networks {
		if n := len(c.VNet.Nodes); n <= s.Nodes && (largest == nil || n > len(largest.VNet.Nodes)) {
			largest = &s.Networks[i]
		}
	}
	if largest == nil {
		return fmt.Errorf("none of the %d networks has at most %d nodes", len(s.Networks), s.Nodes)
	}
	v, err := Reroute(largest.VNet, fastOSPF)
	if err != nil {
		return err
	}
	return s.alone(ctx, Case{Name: v.Name, Source: largest.Source, VNet: v})
}

// alone brings one network up and takes it down again, with nothing beside it.
func (s *scale) alone(ctx context.Context, c Case) error {
	s.part.about([]Case{c})
	if len(s.up) > 0 {
		s.progress(0, 0, "taking down what is up")
		if err := s.service.clear(ctx, nil); err != nil {
			return err
		}
		s.up = nil
	}
	if err := s.rest(ctx); err != nil {
		return err
	}
	before, err := s.usage()
	if err != nil {
		return err
	}
	m := s.measurement(c, true)
	result, err := m.apply(ctx, c, nil)
	after, e := s.usage()
	if err := errors.Join(err, e); err != nil {
		s.removeQuietly(ctx, c)
		return fmt.Errorf("up: %w", err)
	}
	s.part.add("created", "in place", "s", result.GetCreatedSeconds())
	s.part.add("up", "converged", "s", after.at.Sub(before.at).Seconds())
	s.part.cpu(before, after)
	load, err := bench.LoadAverage()
	if err != nil {
		return err
	}
	s.part.add("load", "load average then", "", load)
	if err := s.weigh(ctx, before); err != nil {
		return err
	}
	took, err := timed(func() error { _, err := m.apply(ctx, c, nil); return err })
	if err != nil {
		return fmt.Errorf("unchanged up: %w", err)
	}
	s.part.add("unchanged", "unchanged up", "s", took)
	if took, err = timed(func() error { return m.delete(ctx) }); err != nil {
		return fmt.Errorf("down: %w", err)
	}
	s.part.add("down", "down", "s", took)
	return nil
}
