package probe

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Options of [Ping]. The zero value is good for networks of any size.
type Options struct {
	// Timeout is how long one echo request may go unanswered; 0: a second.
	Timeout time.Duration
	// Tries is how many echo requests a pair loses at least before it has
	// failed; 0: 3.
	Tries int
	// Parallel bounds the sockets that are open at the same time, one for each
	// node and family; 0: 256.
	Parallel int
}

func (o Options) withDefaults() Options {
	if o.Timeout <= 0 {
		o.Timeout = time.Second
	}
	if o.Tries <= 0 {
		o.Tries = 3
	}
	if o.Parallel <= 0 {
		o.Parallel = 256
	}
	return o
}

// Result is what came of the pairs.
type Result struct {
	// RTT holds the round-trip times of the pairs that answered, sorted: from just
	// before the request is sent to the kernel's time stamp on the reply.
	RTT    []time.Duration
	Failed []Failure // the others, in the order of the pairs
}

// Failure is a pair that did not answer.
type Failure struct {
	Pair   int    // index in the pairs
	Reason string // for people
}

// maxBatch is how many pairs one socket can report apart: the echo's sequence
// number has 16 bits.
const maxBatch = 1 << 16

// window is how many requests of one socket may be on their way at once, in
// the first try and in the following ones: what was lost to a full queue should
// not meet a full queue again.
func window(try int) int {
	if try == 0 {
		return 64
	}
	return 16
}

// Ping sends an echo request for every pair, from the one node's loopback to
// the other's, and repeats what is lost: an ICMP error, a missing route and
// silence all count as lost until the tries are used up. It goes on beyond them
// as long as a quarter of what was lost is answered the next time. An ICMP error
// comes at once, and may come of a loop that lasts until routers agree (RFC 5715):
// the next try begins no sooner than after a silence.
//
// It calls progress, which may be nil, with the number of pairs that are
// decided and of all pairs, from one goroutine at a time, at most ten times a
// second, and once at the end.
//
// The error tells that the probe itself could not be carried out: a pair that
// does not index the nodes, a namespace that cannot be entered, no file
// descriptors, a cancelled ctx. Unreachable nodes are no error.
func Ping(ctx context.Context, nodes []Node, pairs []Pair, o Options, progress func(done, total int)) (Result, error) {
	o = o.withDefaults()
	batches, err := batch(nodes, pairs)
	if err != nil {
		return Result{}, err
	}
	meter := newMeter(len(pairs), progress)
	try, open := 0, len(pairs)
	for ; open > 0; try++ {
		began := time.Now()
		if err := each(ctx, batches, o.Parallel, func(b *echoBatch) error {
			return b.run(ctx, window(try), o.Timeout, meter)
		}); err != nil {
			return Result{}, err
		}
		before := open
		open = 0
		for _, b := range batches {
			open += len(b.open)
		}
		// Narrow links drop what comes too fast: as long as repeating helps, it is
		// not in vain.
		if try+1 >= o.Tries && (try == 0 || (before-open)*4 < before) {
			meter.add(open)
			try++
			break
		}
		if slices.ContainsFunc(batches, func(b *echoBatch) bool { return b.refused && len(b.open) > 0 }) {
			if err := sleepUntil(ctx, began.Add(o.Timeout)); err != nil {
				return Result{}, err
			}
		}
	}
	meter.finish()
	return collect(len(pairs), batches, o.Timeout, try), nil
}

// sleepUntil returns at that time, or with the cause of ctx's end.
func sleepUntil(ctx context.Context, at time.Time) error {
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

// batch groups the pairs by the socket that sends for them.
func batch(nodes []Node, pairs []Pair) ([]*echoBatch, error) {
	type sender struct {
		from   int
		family string
	}
	var batches []*echoBatch
	current := make(map[sender]*echoBatch)
	for i, p := range pairs {
		switch {
		case p.From < 0 || p.From >= len(nodes) || p.To < 0 || p.To >= len(nodes):
			return nil, fmt.Errorf("pair %d (%d to %d) does not index the %d nodes", i, p.From, p.To, len(nodes))
		case nodes[p.From].NS == Elsewhere:
			return nil, fmt.Errorf("pair %d: node %s runs on another machine, which must send its echo requests", i, nodes[p.From].Name)
		case p.Family != IPv4 && p.Family != IPv6:
			return nil, fmt.Errorf("pair %d: unknown address family %q; the families are %s and %s", i, p.Family, IPv4, IPv6)
		case !nodes[p.From].addr(p.Family).IsValid():
			return nil, fmt.Errorf("pair %d: node %s has no %s loopback", i, nodes[p.From].Name, p.Family)
		case !nodes[p.To].addr(p.Family).IsValid():
			return nil, fmt.Errorf("pair %d: node %s has no %s loopback", i, nodes[p.To].Name, p.Family)
		}
		s := sender{p.From, p.Family}
		b := current[s]
		if b == nil || len(b.echoes) == maxBatch {
			b = &echoBatch{node: nodes[p.From], family: p.Family}
			current[s] = b
			batches = append(batches, b)
		}
		b.open = append(b.open, len(b.echoes))
		b.echoes = append(b.echoes, echo{pair: i, to: nodes[p.To].addr(p.Family)})
	}
	return batches, nil
}

// each runs f for every batch that has something open, at most parallel side by
// side, and returns the first error.
func each(ctx context.Context, batches []*echoBatch, parallel int, f func(*echoBatch) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	slots := make(chan struct{}, parallel)
	for _, b := range batches {
		if len(b.open) == 0 {
			continue
		}
		slots <- struct{}{}
		if ctx.Err() != nil {
			break
		}
		wg.Go(func() {
			defer func() { <-slots }()
			if err := f(b); err != nil {
				cancel(err)
			}
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// collect puts the batches' outcomes into the order of the pairs.
func collect(pairs int, batches []*echoBatch, timeout time.Duration, tries int) Result {
	r := Result{RTT: make([]time.Duration, 0, pairs)}
	for _, b := range batches {
		for _, e := range b.echoes {
			if e.answered {
				r.RTT = append(r.RTT, e.rtt)
			}
		}
		for _, i := range b.open {
			reason := b.reasons[i]
			if reason == "" {
				reason = fmt.Sprintf("no reply within %v, %d tries", timeout, tries)
			}
			r.Failed = append(r.Failed, Failure{Pair: b.echoes[i].pair, Reason: reason})
		}
	}
	slices.SortFunc(r.Failed, func(a, b Failure) int { return a.Pair - b.Pair })
	slices.Sort(r.RTT)
	return r
}

// meter counts decided pairs and passes the count on now and then.
type meter struct {
	mu          sync.Mutex
	done, total int
	told        time.Time
	report      func(done, total int)
}

func newMeter(total int, report func(done, total int)) *meter {
	if report == nil {
		report = func(int, int) {}
	}
	return &meter{total: total, report: report, told: time.Now()}
}

func (m *meter) add(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.done += n
	if now := time.Now(); now.Sub(m.told) >= 100*time.Millisecond {
		m.told = now
		m.report(m.done, m.total)
	}
}

func (m *meter) finish() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.report(m.done, m.total)
}
