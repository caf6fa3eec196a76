package forward

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"trellis/internal/bench"
)

const (
	// batch is how many frames the generator sends before the core turns to
	// receiving them: a card's interrupt budget (NAPI_POLL_WEIGHT).
	batch = 64
	// clockEvery is CLOCK_EVERY of bpf/sink.bpf.c.
	clockEvery = 1024
	// shortest is the least number of frames that give a rate.
	shortest = 8 * clockEvery
	// attempts is how often a run is made in all whose frames were received on
	// another core.
	attempts = 8
)

// elsewhereError says that frames were received on another core. A packet of the
// kernel's own (duplicate address detection, MLD) that another core sends through
// a veth schedules the receiver's NAPI there, where it stays for as long as
// frames keep arriving.
type elsewhereError struct{ frames, sent uint64 }

func (e *elsewhereError) Error() string {
	return fmt.Sprintf("%d of %d frames arrived on another core in each of %d runs, so that the rate is not the cost of one; is packet steering (rps_cpus) set?", e.frames, e.sent, attempts)
}

// meter is a generator and a sink, in their places.
type meter struct {
	outside *bench.Space // with the generator's device
	kinds   []kind       // that take turns, by router and size
	size    Size
	flows   int  // that what is sent is of; 0: one
	beside  bool // kinds are of routers side by side, even if there is one
	timed   bool // frames have the time in them, and are sent at a pace

	generator generatorObjects
	sink      sinkObjects
	attached  link.Link
}

// sample is what one run of the generator has shown.
type sample struct {
	sent, arrived uint64
	// ns is the time from one arriving frame to the next; 0 if too few arrived.
	ns float64
	// routers is what arrived by each of several routers side by side.
	routers []uint64
}

// stampLen is the length of struct stamp of bpf/frame.h.
const stampLen = 16

// stampAt is where frames have their stamps; 0: they have none.
func (m *meter) stampAt() int {
	if len(m.kinds) > 1 || m.beside || m.timed {
		return len(m.kinds[0].send.header)
	}
	return 0
}

// routers is how many routers there are side by side, or 1.
func (m *meter) routers() int {
	sizes, _ := m.size.parts()
	return len(m.kinds) / len(sizes)
}

// place loads the programs, the sink onto a device of its space; everything
// must happen on the core.
func (m *meter) place(core int, out string, sink *bench.Space, in string) error {
	if err := m.outside.Do(func() error { return m.loadGenerator(out) }); err != nil {
		return fmt.Errorf("load the generator for %s: %w", out, err)
	}
	if err := sink.Do(func() error { return m.loadSink(core, in) }); err != nil {
		return fmt.Errorf("load the sink onto %s: %w", in, err)
	}
	return nil
}

func (m *meter) loadGenerator(out string) error {
	device, err := net.InterfaceByName(out)
	if err != nil {
		return err
	}
	spec, err := loadGenerator()
	if err != nil {
		return err
	}
	turns := m.turns()
	constants := m.describe(func(k *kind) *frame { return &k.send })
	constants["out_ifindex"], constants["other_flows"] = uint32(device.Index), uint32(max(m.flows, 1)-1)
	constants["source"] = uint32(m.kinds[0].send.source)
	constants["turns"], constants["paced"] = uint32(len(turns)), one(m.timed)
	var padded [maxTurns]uint8
	copy(padded[:], turns)
	constants["turn_kinds"] = padded
	return loadWith(spec, &m.generator, constants)
}

// Bounds of the programs: MAX_KINDS of bpf/frame.h and MAX_TURNS of
// bpf/generator.bpf.c.
const (
	maxKinds = 3 * MaxBeside
	maxTurns = 12 * MaxBeside
)

// turns gives the order in which the kinds come: routers take turns, each with
// the sizes in theirs.
func (m *meter) turns() []uint8 {
	sizes, order := m.size.parts()
	var turns []uint8
	for _, size := range order {
		for i := range m.routers() {
			turns = append(turns, uint8(i*len(sizes)+size))
		}
	}
	return turns
}

// describe gives the constants that generator and sink share, from either's
// frames.
func (m *meter) describe(side func(*kind) *frame) map[string]any {
	var headers [maxKinds][headerMax / 8]uint64
	var lens [maxKinds]uint32
	for i := range m.kinds {
		f := side(&m.kinds[i])
		headers[i], lens[i] = words(f.header), uint32(f.len)
	}
	sizes, _ := m.size.parts()
	first := side(&m.kinds[0])
	at := 0
	if m.stampAt() > 0 {
		at = len(first.header)
	}
	return map[string]any{
		"kinds": uint32(len(m.kinds)), "sizes": uint32(len(sizes)), "header_len": uint32(len(first.header)),
		"headers": headers, "lens": lens, "stamp_at": uint32(at), "timed": one(m.timed),
	}
}

func one(on bool) uint32 {
	if on {
		return 1
	}
	return 0
}

func (m *meter) loadSink(core int, in string) error {
	device, err := net.InterfaceByName(in)
	if err != nil {
		return err
	}
	spec, err := loadSink()
	if err != nil {
		return err
	}
	constants := m.describe(func(k *kind) *frame { return &k.expect })
	constants["mask"], constants["cpu"] = words(m.kinds[0].expect.ofFlows(m.flows).mask), uint32(core)
	err = loadWith(spec, &m.sink, constants)
	if err != nil {
		return err
	}
	m.attached, err = link.AttachXDP(link.XDPOptions{Program: m.sink.Sink, Interface: device.Index, Flags: link.XDPDriverMode})
	return err
}

// loadWith loads programs with the values of their constants.
func loadWith(spec *ebpf.CollectionSpec, objects any, constants map[string]any) error {
	for name, value := range constants {
		v := spec.Variables[name]
		if v == nil {
			return fmt.Errorf("the program has no constant %s", name)
		}
		if err := v.Set(value); err != nil {
			return fmt.Errorf("set the constant %s: %w", name, err)
		}
	}
	return spec.LoadAndAssign(objects, nil)
}

// run sends at least n frames from the generator's core, and gives what became of
// them. A run whose frames were received on another core says nothing of the cost
// of one, and is made again; one of which too few arrived to tell, too: a forwarder
// that is a process may have been kept from its core.
func (m *meter) run(n uint32) (s sample, err error) {
	for range attempts {
		s, err = m.runOnce(n)
		elsewhere := (*elsewhereError)(nil)
		starved := err == nil && s.ns == 0 && s.arrived > 0
		if !starved && !errors.As(err, &elsewhere) {
			break
		}
	}
	return s, err
}

func (m *meter) runOnce(n uint32) (s sample, err error) {
	if err := m.generate(n, batch); err != nil {
		return s, err
	}
	seen, err := m.drained()
	if err != nil {
		return s, err
	}
	if err := m.generator.Sent.Get(&s.sent); err != nil {
		return s, fmt.Errorf("read the generator's counter: %w", err)
	}
	s.arrived = seen.Frames
	if m.beside {
		by, err := m.byRouter()
		if err != nil {
			return s, err
		}
		for _, r := range by {
			s.routers = append(s.routers, r.Frames)
		}
	}
	switch {
	case seen.Elsewhere > s.sent/100:
		return s, &elsewhereError{frames: seen.Elsewhere, sent: s.sent}
	case seen.Frames == 0 && seen.Others > 0:
		return s, fmt.Errorf("%d frames were sent, and none of the %d that arrived is as it should be: %s", s.sent, seen.Others, m.difference(&seen))
	case seen.LastFrames > seen.FirstFrames:
		s.ns = float64(seen.LastNs-seen.FirstNs) / float64(seen.LastFrames-seen.FirstFrames)
	}
	return s, nil
}

// generate runs the generator n times, after counters are set to 0.
func (m *meter) generate(n, batch uint32) error {
	g := &m.generator
	err := errors.Join(g.Sent.Set(uint64(0)), g.Sequence.Set([MaxBeside]uint32{}), g.Turn.Set(uint32(0)), g.Begun.Set(uint64(0)), g.Due.Set(uint64(0)),
		m.sink.Tally.Set(sinkSeen{}), m.sink.Routers.Set([MaxBeside]sinkRouter{}), m.sink.Latency.Set([latencyBuckets]uint64{}))
	if err != nil {
		return fmt.Errorf("reset the counters: %w", err)
	}
	longest := 0
	for i := range m.kinds {
		longest = max(longest, m.kinds[i].send.len)
	}
	err = m.outside.Do(func() error {
		_, err := g.Generate.Run(&ebpf.RunOptions{
			Data: make([]byte, longest), Repeat: n, Flags: unix.BPF_F_TEST_XDP_LIVE_FRAMES, BatchSize: batch,
		})
		return err
	})
	if err != nil {
		return fmt.Errorf("generate frames: %w", err)
	}
	return nil
}

// byRouter gives what the sink has counted of each router.
func (m *meter) byRouter() ([]sinkRouter, error) {
	var all [MaxBeside]sinkRouter
	if err := m.sink.Routers.Get(&all); err != nil {
		return nil, fmt.Errorf("read the sink's counters of routers: %w", err)
	}
	return all[:m.routers()], nil
}

// difference says how a frame that the sink refused differs from the one that its
// stamp says it is.
func (m *meter) difference(seen *sinkSeen) string {
	i := 0
	if m.stampAt() > 0 {
		at := len(m.kinds[0].expect.header)
		if i = int(binary.NativeEndian.Uint16(seen.Other[at:])); i >= len(m.kinds) {
			return fmt.Sprintf("it has no stamp of the generator's; it begins % x", seen.Other[:64])
		}
	}
	expect := m.kinds[i].expect.ofFlows(m.flows)
	return expect.difference(seen.Other[:], int(seen.OtherLen))
}

// drained waits until no more frames arrive.
func (m *meter) drained() (seen sinkSeen, err error) {
	const pause, timeout = 2 * time.Millisecond, 200 * time.Millisecond
	for end := time.Now().Add(timeout); ; time.Sleep(pause) {
		var now sinkSeen
		if err := m.sink.Tally.Get(&now); err != nil {
			return seen, fmt.Errorf("read the sink's counters: %w", err)
		}
		if now.Frames+now.Others == seen.Frames+seen.Others && now.Frames > 0 || time.Now().After(end) {
			return now, nil
		}
		seen = now
	}
}

func (m *meter) close() error {
	var err error
	if m.attached != nil {
		err = m.attached.Close()
	}
	return errors.Join(err, m.sink.Close(), m.generator.Close())
}
