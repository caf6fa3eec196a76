package deploy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"

	trellisv1 "trellis/api/trellis/v1"
	"trellis/internal/vnet"
)

// mostLost is how many networks may fail before the population is given up.
const mostLost = 10

// span is when one network of a population came up.
type span struct {
	nodes      int
	began, end float64 // seconds since the first began
}

// zoo brings a population up.
func (s *scale) zoo(ctx context.Context) error {
	networks, err := staticCopies(s.Networks)
	if err != nil {
		return err
	}
	population, err := Population(networks, s.Nodes)
	if err != nil {
		return err
	}
	s.part.about(population)
	before, err := s.usage()
	if err != nil {
		return err
	}
	spans, err := s.bringUp(ctx, population)
	after, e := s.usage()
	if err = errors.Join(err, e); err != nil || len(spans) == 0 {
		return err
	}
	s.part.add("up", "all in place", "s", after.at.Sub(before.at).Seconds())
	rates := tenths(spans)
	s.part.add("rate", "nodes/s, by tenths of the nodes", "nodes/s", rates...)
	for i, r := range rates {
		s.part.add(fmt.Sprintf("rate%d", i+1), fmt.Sprintf("... tenth %d", i+1), "nodes/s", r)
	}
	s.part.add("rateRatio", "... the last of the first", "", rates[len(rates)-1]/rates[0])
	s.part.cpu(before, after)
	return s.weigh(ctx, before)
}

// bringUp brings networks up, some at a time, and gives when each came. Single
// failures are noted; with too many the rest is not tried.
func (s *scale) bringUp(ctx context.Context, population []Case) ([]span, error) {
	var (
		mu     sync.Mutex
		spans  []span
		failed int
		nodes  int
		wg     sync.WaitGroup
	)
	total, _ := size(population)
	queue := make(chan Case)
	start := time.Now()
	one := func(c Case) {
		began := time.Since(start).Seconds()
		_, err := s.measurement(c, false).apply(ctx, c, nil)
		end := time.Since(start).Seconds()
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			failed++
			s.part.fail("up of %s (%d nodes): %v", c.Name, len(c.VNet.Nodes), err)
			return
		}
		s.up = append(s.up, c)
		spans = append(spans, span{len(c.VNet.Nodes), began, end})
		nodes += len(c.VNet.Nodes)
		s.progress(nodes, total, "%d of %d networks, %.1f nodes/s; %s with %d nodes took %.1f s", len(spans), len(population),
			float64(nodes)/end, c.Name, len(c.VNet.Nodes), end-began)
	}
	for range s.Parallel {
		wg.Go(func() {
			for c := range queue {
				one(c)
			}
		})
	}
	tooMany := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return failed >= mostLost
	}
	for _, c := range population {
		if ctx.Err() != nil || tooMany() {
			break
		}
		queue <- c
	}
	close(queue)
	wg.Wait()
	if ctx.Err() != nil {
		return spans, context.Cause(ctx)
	}
	if failed >= mostLost {
		return spans, fmt.Errorf("%d networks have failed; the rest was not tried", failed)
	}
	return spans, nil
}

// tenths gives the rates, in nodes a second, at which the tenths of all nodes
// came. A network's nodes count evenly over the time that it took.
func tenths(spans []span) []float64 {
	var moments []float64
	total := 0.0
	for _, s := range spans {
		moments = append(moments, s.began, s.end)
		total += float64(s.nodes)
	}
	slices.Sort(moments)
	moments = slices.Compact(moments)
	const parts = 10
	rates := make([]float64, 0, parts)
	came, last := 0.0, moments[0]
	for i := 1; i < len(moments) && len(rates) < parts; i++ {
		rate := 0.0
		for _, s := range spans {
			if s.began <= moments[i-1] && s.end >= moments[i] {
				rate += float64(s.nodes) / (s.end - s.began)
			}
		}
		gained := rate * (moments[i] - moments[i-1])
		for len(rates) < parts {
			missing := total*float64(len(rates)+1)/parts - came
			if rate == 0 || missing > gained*(1+1e-9) {
				break
			}
			at := moments[i-1] + missing/rate
			rates = append(rates, total/parts/(at-last))
			last = at
		}
		came += gained
	}
	return rates
}

// oneMore is the network that comes beside all the others.
func oneMore() (Case, error) {
	v, err := Ring(20, vnet.Routing{Protocol: vnet.Static})
	if err != nil {
		return Case{}, err
	}
	v.Name = "one-more"
	return Case{Name: v.Name, Source: "ring", VNet: v}, nil
}

// verbRounds is how often each verb is measured.
const verbRounds = 5

// verbs measures what one verb takes beside what is up.
func (s *scale) verbs(ctx context.Context) error {
	s.part.about(s.up)
	more, err := oneMore()
	if err != nil {
		return err
	}
	defer s.removeQuietly(ctx, more)
	largest := more
	for _, c := range s.up {
		if len(c.VNet.Nodes) > len(largest.VNet.Nodes) {
			largest = c
		}
	}
	client, m := s.service.Client(), s.measurement(more, false)
	setLink := func(c Case) error {
		rate := uint64(1e9)
		_, err := client.SetLink(ctx, connect.NewRequest(&trellisv1.SetLinkRequest{Vnet: c.VNet.Name, Link: c.VNet.Links[0].Name, Rate: &rate}))
		return err
	}
	show := func(c Case) error {
		_, err := client.Get(ctx, connect.NewRequest(&trellisv1.GetRequest{Name: c.VNet.Name}))
		return err
	}
	unchanged := func(c Case) error {
		result, err := s.measurement(c, false).apply(ctx, c, nil)
		if err == nil && result.GetChanges() > 0 {
			s.part.fail("the second up of %s took %d steps where nothing had changed", c.Name, result.GetChanges())
		}
		return err
	}
	many := fmt.Sprintf(" (%d nodes)", len(largest.VNet.Nodes))
	calls := []struct {
		name, label string
		call        func() error
	}{
		{"upOne", "up of one more (20 nodes)", func() error { _, err := m.apply(ctx, more, nil); return err }},
		{"unchangedOne", "unchanged up of it", func() error { return unchanged(more) }},
		{"unchangedLargest", "unchanged up of the largest" + many, func() error { return unchanged(largest) }},
		{"setLinkOne", "link set in it", func() error { return setLink(more) }},
		{"setLinkLargest", "link set in the largest" + many, func() error { return setLink(largest) }},
		{"list", "ls", func() error { _, err := s.list(ctx); return err }},
		{"showOne", "show of it", func() error { return show(more) }},
		{"showLargest", "show of the largest" + many, func() error { return show(largest) }},
		{"downOne", "down of it", func() error { return m.delete(ctx) }},
	}
	samples := make([][]float64, len(calls))
	for round := range verbRounds {
		for i, c := range calls {
			s.progress(round*len(calls)+i, verbRounds*len(calls), "%s", c.label)
			took, err := timed(c.call)
			if err != nil {
				return fmt.Errorf("%s: %w", c.label, err)
			}
			samples[i] = append(samples[i], took)
		}
		if largest.Name == more.Name {
			continue
		}
		// The link is as described again for the next round.
		if _, err := s.measurement(largest, false).apply(ctx, largest, nil); err != nil {
			return fmt.Errorf("up of %s: %w", largest.Name, err)
		}
	}
	for i, c := range calls {
		s.part.add(c.name, c.label, "s", samples[i]...)
	}
	return nil
}

// removeQuietly takes a network down that may be there. What fails here fails at
// the end of the suite again, which says so.
func (s *scale) removeQuietly(ctx context.Context, c Case) {
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpTime)
	defer cancel()
	_ = s.measurement(c, false).delete(end)
}

// idleFor is how long the service is watched while nothing happens.
const idleFor = 15 * time.Second

// idle measures what the service takes while nothing happens.
func (s *scale) idle(ctx context.Context) error {
	s.part.about(s.up)
	if err := s.rest(ctx); err != nil {
		return err
	}
	before, err := s.usage()
	if err != nil {
		return err
	}
	s.progress(0, 0, "watching for %s", idleFor)
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(idleFor):
	}
	after, err := s.usage()
	if err != nil {
		return err
	}
	took := after.at.Sub(before.at).Seconds()
	s.part.add("idleService", "CPU of the service, of one core", "%", 100*(after.serviceCPU-before.serviceCPU)/took)
	s.part.add("idleMachine", "CPU of the machine, of one core", "%", 100*(after.machineCPU-before.machineCPU)/took)
	s.part.add("idleOthers", "... of that programs that ran before", "%", 100*(after.others-before.others)/took)
	return s.counts(ctx, after)
}

// down takes everything down at once.
func (s *scale) down(ctx context.Context) error {
	s.part.about(s.up)
	before, err := s.usage()
	if err != nil {
		return err
	}
	if err := s.service.clear(ctx, func(p *trellisv1.Progress) {
		s.progress(int(p.GetDone()), int(p.GetTotal()), "%s %s", p.GetPhase(), p.GetDetail())
	}); err != nil {
		return err
	}
	after, err := s.usage()
	if err != nil {
		return err
	}
	s.up = nil
	s.part.add("down", "until nothing was left", "s", after.at.Sub(before.at).Seconds())
	s.part.cpu(before, after)
	left, err := s.service.processes()
	if err != nil {
		return err
	}
	if len(left) > 0 {
		s.part.fail("%d processes of nodes are left after down --all", len(left))
	}
	return s.weigh(ctx, before)
}
