package forward

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"golang.org/x/sys/unix"
)

// Sweep is what a configuration does with frames that come at a pace, from light
// load to twice what it can forward. The generator has a core of its own, as a
// machine of its own would be; routers and sink share another.
type Sweep struct {
	Config  string `json:"config"`
	Size    Size   `json:"size"`
	Routes  int    `json:"routes,omitempty"`
	Flows   int    `json:"flows,omitempty"`
	Routers int    `json:"routers,omitempty"`
	// Saturation is the rate at which frames arrive when they are sent as fast as
	// the generator can, in 1000 a second.
	Saturation float64 `json:"saturation_kpps"`
	Points     []Point `json:"points"` // by offered load
	// NoDrop and HalfPercent are the highest rates of a binary search at which no
	// frame was lost (RFC 2544, section 26.1), and at most 0.5 %.
	NoDrop      Point `json:"no_drop"`
	HalfPercent Point `json:"half_percent"`
	// CPU is where the routers' core spends its time at saturation, where that was
	// asked for.
	CPU []Share `json:"cpu,omitempty"`
}

// Point is a run at one offered load.
type Point struct {
	Offered float64 `json:"offered_kpps"` // as it was sent, in 1000 frames a second
	Kpps    float64 `json:"kpps"`         // that arrived
	Sent    uint64  `json:"sent"`
	Arrived uint64  `json:"arrived"`
	Missing uint64  `json:"missing"` // by gaps in the sequence numbers at the sink
	Late    uint64  `json:"late"`    // arrived after a frame with a greater number
	Loss    float64 `json:"loss"`    // of what was sent, 0 to 1
	// Latency is the time from the generator's program to the sink's,
	// by CLOCK_MONOTONIC, ns.
	Latency Latency `json:"latency_ns"`
	// ArrivedBy is Arrived by each of several routers, Fairness its index [Jain].
	ArrivedBy []uint64 `json:"arrived_by,omitempty"`
	Fairness  float64  `json:"fairness,omitempty"`
}

// Latency is percentiles of the time on the way, in nanoseconds.
type Latency struct {
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p999"`
}

const (
	// pacedBatch is how many times the generator looks for a due frame before the
	// kernel hands on what is there: about a microsecond.
	pacedBatch = 16
	// trials bounds a binary search: it ends within 1 % of the rate.
	trials = 8
	// allowed is the loss of the second search.
	allowed = 0.005
)

// loads are the offered loads of a sweep, of the saturation.
var loads = []float64{0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 1, 1.1, 1.25, 1.5, 2}

// secondCore gives a core for the generator besides the routers'.
func secondCore(core int) (int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return 0, fmt.Errorf("read which cores there are: %w", err)
	}
	set.Clear(core)
	for i := range len(set) * 64 {
		if set.IsSet(i) {
			return i, nil
		}
	}
	return 0, errors.New("a sweep needs two cores, one of them for the generator, and this process may use one")
}

// sweep measures a configuration at a pace. With cpu it samples the routers'
// core at saturation.
func sweep(ctx context.Context, config *configuration, core int, sc Scenario, length time.Duration, cpu bool, step func(what string)) (s Sweep, err error) {
	sending, err := secondCore(core)
	if err != nil {
		return s, err
	}
	step("building")
	r, err := newRigOn(config, sending, core, sc, true)
	if err != nil {
		return s, fmt.Errorf("build it: %w", err)
	}
	defer func() { err = errors.Join(err, r.close()) }()
	row := rowOf(config, sc)
	s = Sweep{Config: row.Config, Size: row.Size, Routes: row.Routes, Flows: row.Flows, Routers: row.Routers}
	p := pacer{meter: &r.meter, core: core}
	if err := p.calibrate(); err != nil {
		return s, err
	}
	if err := p.ready(ctx); err != nil {
		return s, err
	}
	step("saturation")
	flood, err := p.run(ctx, 0, length)
	if err != nil {
		return s, err
	}
	if s.Saturation = flood.Kpps; flood.Kpps == 0 {
		return s, fmt.Errorf("%d frames were sent, and none arrived", flood.Sent)
	}
	for _, load := range loads {
		step(fmt.Sprintf("load %g", load))
		point, err := p.run(ctx, load*s.Saturation, length)
		if err != nil {
			return s, err
		}
		s.Points = append(s.Points, point)
	}
	step("half a percent")
	if s.HalfPercent, err = p.search(ctx, allowed, flood.Offered, length); err != nil {
		return s, err
	}
	step("no drop")
	if s.NoDrop, err = p.search(ctx, 0, flood.Offered, length); err != nil {
		return s, err
	}
	if cpu {
		step("processor time")
		s.CPU, err = sampleCore(core, func() error {
			_, err := p.run(ctx, s.Saturation, length)
			return err
		})
	}
	return s, err
}

// sweepSteps is how many steps a sweep tells of.
const sweepSteps = 16

// pacer runs a generator at a pace.
type pacer struct {
	meter *meter
	core  int
	idle  float64 // ns that a look for a due frame takes
}

// calibrate measures how long the generator takes to find that nothing is due.
func (p *pacer) calibrate() error {
	const looks = 1 << 18
	if err := p.meter.generator.Duration.Set(uint64(0)); err != nil {
		return err
	}
	if err := p.meter.generate(looks, pacedBatch); err != nil {
		return err
	}
	var begun, ended uint64
	g := &p.meter.generator
	if err := errors.Join(g.Begun.Get(&begun), g.Ended.Get(&ended)); err != nil {
		return fmt.Errorf("read the generator's clock: %w", err)
	}
	p.idle = max(1, float64(ended-begun)/looks)
	return nil
}

// ready waits until frames get through.
func (p *pacer) ready(ctx context.Context) error {
	const timeout = 2 * time.Second
	for end := time.Now().Add(timeout); ; time.Sleep(5 * time.Millisecond) {
		point, err := p.run(ctx, 10, 2*time.Millisecond)
		switch {
		case err == nil && point.Arrived > 0, err != nil && time.Now().After(end):
			return err
		case time.Now().After(end):
			return fmt.Errorf("it forwards nothing: %d frames were sent, and none arrived", point.Sent)
		}
	}
}

// run offers a load of so many thousand frames a second; 0 is as many as there
// can be.
func (p *pacer) run(ctx context.Context, kpps float64, length time.Duration) (point Point, err error) {
	for range attempts {
		if err := context.Cause(ctx); err != nil {
			return point, err
		}
		point, err = p.runOnce(kpps, length)
		if elsewhere := (*elsewhereError)(nil); !errors.As(err, &elsewhere) {
			break
		}
	}
	return point, err
}

func (p *pacer) runOnce(kpps float64, length time.Duration) (point Point, err error) {
	interval := uint64(0)
	if kpps > 0 {
		interval = uint64(1e6 / kpps * 1024)
	}
	m, g := p.meter, &p.meter.generator
	if err := errors.Join(g.Interval.Set(interval), g.Duration.Set(uint64(length.Nanoseconds()))); err != nil {
		return point, fmt.Errorf("set the generator's pace: %w", err)
	}
	// Looks that find a frame take longer, so these are enough.
	looks := 1.1*float64(length.Nanoseconds())/p.idle + pacedBatch
	if err := m.generate(uint32(min(looks, math.MaxUint32)), pacedBatch); err != nil {
		return point, err
	}
	seen, err := m.drained()
	if err != nil {
		return point, err
	}
	var begun, last uint64
	if err := errors.Join(g.Begun.Get(&begun), g.LastSent.Get(&last), g.Sent.Get(&point.Sent)); err != nil {
		return point, fmt.Errorf("read the generator's counters: %w", err)
	}
	if seen.Elsewhere > point.Sent/100 {
		return point, &elsewhereError{frames: seen.Elsewhere, sent: point.Sent}
	}
	if seen.Frames == 0 && seen.Others > 0 {
		return point, fmt.Errorf("%d frames were sent, and none of the %d that arrived is as it should be: %s", point.Sent, seen.Others, m.difference(&seen))
	}
	by, err := m.byRouter()
	if err != nil {
		return point, err
	}
	var latency [latencyBuckets]uint64
	if err := m.sink.Latency.Get(&latency); err != nil {
		return point, fmt.Errorf("read the sink's latencies: %w", err)
	}
	point.finish(&seen, by, latency[:], float64(last)-float64(begun))
	if !m.beside {
		point.ArrivedBy, point.Fairness = nil, 0
	}
	return point, nil
}

// finish fills in what follows from the counters; frames were sent for ns.
func (p *Point) finish(seen *sinkSeen, by []sinkRouter, latency []uint64, ns float64) {
	p.Arrived = seen.Frames
	for _, r := range by {
		p.Missing += r.Missing
		p.Late += r.Late
		p.ArrivedBy = append(p.ArrivedBy, r.Frames)
	}
	p.Fairness = Jain(p.ArrivedBy)
	if p.Sent > p.Arrived {
		p.Loss = float64(p.Sent-p.Arrived) / float64(p.Sent)
	}
	if ns > 0 && p.Sent > 1 {
		p.Offered = float64(p.Sent-1) / ns * 1e6
		p.Kpps = p.Offered * (1 - p.Loss)
	}
	p.Latency = Latency{percentile(latency, 0.5), percentile(latency, 0.9), percentile(latency, 0.99), percentile(latency, 0.999)}
}

// search finds by halving the highest rate of which no more than a part is lost.
// A trial that loses more is made once more, since a shared machine loses some
// time, and with it frames, by itself.
func (p *pacer) search(ctx context.Context, part, most float64, length time.Duration) (best Point, err error) {
	low, high := 0.0, most
	for range trials {
		rate := (low + high) / 2
		point, err := p.run(ctx, rate, length)
		if err == nil && point.Loss > part {
			point, err = p.run(ctx, rate, length)
		}
		if err != nil {
			return best, err
		}
		if point.Loss <= part && point.Arrived > 0 {
			low, best = rate, point
		} else {
			high = rate
		}
	}
	return best, nil
}
