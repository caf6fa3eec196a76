package forward

import (
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
	send    frame
	expect  frame
	flows   int // that what is sent is of; 0: one

	generator generatorObjects
	sink      sinkObjects
	attached  link.Link
}

// sample is what one run of the generator has shown.
type sample struct {
	sent, arrived uint64
	// ns is the time from one arriving frame to the next; 0 if too few arrived.
	ns float64
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
	return loadWith(spec, &m.generator, map[string]any{
		"header": words(m.send.header), "header_len": uint32(len(m.send.header)), "out_ifindex": uint32(device.Index),
		"source": uint32(m.send.source), "other_flows": uint32(max(m.flows, 1) - 1),
	})
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
	err = loadWith(spec, &m.sink, map[string]any{
		"header": words(m.expect.header), "mask": words(m.expect.mask), "header_len": uint32(len(m.expect.header)),
		"frame_len": uint32(m.expect.len), "cpu": uint32(core),
	})
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
// of one, and is made again.
func (m *meter) run(n uint32) (s sample, err error) {
	for range attempts {
		s, err = m.runOnce(n)
		if elsewhere := (*elsewhereError)(nil); !errors.As(err, &elsewhere) {
			break
		}
	}
	return s, err
}

func (m *meter) runOnce(n uint32) (s sample, err error) {
	if err := errors.Join(m.generator.Sent.Set(uint64(0)), m.sink.Tally.Set(sinkSeen{})); err != nil {
		return s, fmt.Errorf("reset the counters: %w", err)
	}
	err = m.outside.Do(func() error {
		_, err := m.generator.Generate.Run(&ebpf.RunOptions{
			Data: make([]byte, m.send.len), Repeat: n, Flags: unix.BPF_F_TEST_XDP_LIVE_FRAMES, BatchSize: batch,
		})
		return err
	})
	if err != nil {
		return s, fmt.Errorf("generate frames: %w", err)
	}
	seen, err := m.drained()
	if err != nil {
		return s, err
	}
	if err := m.generator.Sent.Get(&s.sent); err != nil {
		return s, fmt.Errorf("read the generator's counter: %w", err)
	}
	s.arrived = seen.Frames
	switch {
	case seen.Elsewhere > s.sent/100:
		return s, &elsewhereError{frames: seen.Elsewhere, sent: s.sent}
	case seen.Frames == 0 && seen.Others > 0:
		return s, fmt.Errorf("%d frames were sent, and none of the %d that arrived is as it should be: %s", s.sent, seen.Others, m.expect.difference(seen.Other[:], int(seen.OtherLen)))
	case seen.LastFrames > seen.FirstFrames:
		s.ns = float64(seen.LastNs-seen.FirstNs) / float64(seen.LastFrames-seen.FirstFrames)
	}
	return s, nil
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
