// Package deploy measures how long networks take to come up, to converge, to
// change and to go, and what they cost meanwhile.
//
// Everything goes through the service's API, as `trellis up` and `trellis down`
// do. By default the service is a throw-away one in network and mount
// namespaces of its own, with directories of its own; see [Service].
package deploy

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"connectrpc.com/connect"

	trellisv1 "trellis/api/trellis/v1"
	"trellis/api/trellis/v1/trellisv1connect"
	"trellis/internal/bench"
)

// Client is a client of the service.
type Client = trellisv1connect.VNetServiceClient

// Config says what to measure, and how.
type Config struct {
	Cases  []Case
	Repeat int // at least 1
	// Sample is how many pairs are tried with real packets; 0: none.
	Sample int
	// AddLink measures the addition of a link, too.
	AddLink bool
	// Timeout bounds each up and each down; 0: no bound.
	Timeout time.Duration
	// Settle is how long the machine is left alone before memory is read, since
	// the kernel frees much of it later.
	Settle time.Duration
	// Progress is called with how far it is; it may be nil.
	Progress func(*trellisv1.Progress)
}

// Run measures the cases on the service that the client talks to. The report
// holds what was measured until an error, which is one of ctx or of the service
// itself; the failure of a case is told in its result.
//
// A network that the service has already is refused: measuring it would end with
// its removal.
func Run(ctx context.Context, client Client, cfg Config) (Report, error) {
	report := Report{Bench: "deploy", Repeat: cfg.Repeat, Cases: []Result{}}
	var err error
	if report.Machine, err = bench.ReadMachine(ctx); err != nil {
		return report, err
	}
	info, err := client.Info(ctx, connect.NewRequest(&trellisv1.InfoRequest{}))
	if err != nil {
		return report, fmt.Errorf("ask the service what it is: %w", err)
	}
	report.Service = info.Msg.GetVersion()
	list, err := client.List(ctx, connect.NewRequest(&trellisv1.ListRequest{}))
	if err != nil {
		return report, fmt.Errorf("ask the service for its networks: %w", err)
	}
	for _, s := range list.Msg.GetVnets() {
		for _, c := range cfg.Cases {
			if s.GetName() == c.VNet.Name {
				return report, fmt.Errorf("the service has a network named %s already, and measuring would remove it: take it down first, or measure on a service of the bench's own", s.GetName())
			}
		}
	}
	meters := gauge{local: here(info.Msg), pid: int(info.Msg.GetPid())}
	for i, c := range cfg.Cases {
		result := newResult(c)
		for n := range cfg.Repeat {
			m := measurement{
				Config: cfg, client: client, meters: meters, c: c,
				title: fmt.Sprintf("%s (case %d of %d, round %d of %d)", c.Name, i+1, len(cfg.Cases), n+1, cfg.Repeat),
			}
			sample, err := m.run(ctx)
			if err == nil || len(sample.Seconds) > 0 { // what was measured before an error counts
				result.Samples = append(result.Samples, sample)
			}
			if err != nil {
				result.Error = err.Error()
				break
			}
		}
		result.Summary = summarize(result.Samples)
		report.Cases = append(report.Cases, result)
		if ctx.Err() != nil {
			return report, context.Cause(ctx)
		}
	}
	return report, nil
}

// measurement is one repetition of one case.
type measurement struct {
	Config
	client Client
	meters gauge
	c      Case
	title  string
}

// run brings the network up and takes it down again, whatever happens between.
func (m *measurement) run(ctx context.Context) (s Sample, err error) {
	s = Sample{Figures: newFigures[float64](), Phases: []Phase{}}
	if err := m.rest(ctx, "settling"); err != nil {
		return s, err
	}
	before, err := m.meters.read()
	if err != nil {
		return s, err
	}
	defer func() {
		if err == nil {
			return
		}
		// The clean-up outlives an interrupt.
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpTime)
		defer cancel()
		if e := m.delete(end); e != nil && connect.CodeOf(e) != connect.CodeNotFound {
			err = errors.Join(err, fmt.Errorf("take %s down after that: %w", m.c.VNet.Name, e))
		}
	}()
	if err := m.up(ctx, &s, before); err != nil {
		return s, fmt.Errorf("up: %w", err)
	}
	if err := m.weigh(ctx, &s, before); err != nil {
		return s, err
	}
	if err := m.changes(ctx, &s); err != nil {
		return s, err
	}
	return s, m.down(ctx, &s)
}

// cleanUpTime bounds taking a network down after a failure.
const cleanUpTime = 2 * time.Minute

// up brings the network up.
func (m *measurement) up(ctx context.Context, s *Sample, before reading) error {
	began := time.Now()
	result, err := m.apply(ctx, m.c, func(phase string) {
		s.Phases = append(s.Phases, Phase{phase, time.Since(began).Seconds()})
	})
	if err != nil {
		return err
	}
	s.Seconds[Converged] = time.Since(began).Seconds()
	s.Seconds[Created] = result.GetCreatedSeconds()
	after, err := m.meters.read()
	if err != nil {
		return err
	}
	set(s.CPU, CPUUp, after.machineCPU-before.machineCPU)
	set(s.CPU, CPUServiceUp, after.serviceCPU-before.serviceCPU)
	set(s.Bytes, ServiceIdle, before.rss)
	return nil
}

// weigh reads the memory of the network that is up.
func (m *measurement) weigh(ctx context.Context, s *Sample, before reading) error {
	if err := m.rest(ctx, "settling"); err != nil {
		return err
	}
	after, err := m.meters.read()
	if err != nil {
		return err
	}
	set(s.Bytes, ServiceUp, after.rss)
	set(s.Bytes, NodeMachine, (before.available-after.available)/float64(len(m.c.VNet.Nodes)))
	got, err := m.client.Get(ctx, connect.NewRequest(&trellisv1.GetRequest{Name: m.c.VNet.Name}))
	if err != nil {
		return fmt.Errorf("read the nodes' memory: %w", err)
	}
	var sum float64
	for _, n := range got.Msg.GetNodes() {
		sum += float64(n.GetMemory())
	}
	if n := len(got.Msg.GetNodes()); n > 0 {
		s.Bytes[NodeCgroup] = sum / float64(n)
	}
	return nil
}

// changes measures what happens to a running network.
func (m *measurement) changes(ctx context.Context, s *Sample) error {
	began := time.Now()
	result, err := m.apply(ctx, m.c, nil)
	if err != nil {
		return fmt.Errorf("up of the unchanged network: %w", err)
	}
	s.Seconds[Unchanged] = time.Since(began).Seconds()
	s.UnchangedChanges = int(result.GetChanges())
	if m.Sample > 0 {
		if s.Reach, err = m.reach(ctx); err != nil {
			return fmt.Errorf("check the reachability: %w", err)
		}
	}
	if !m.AddLink {
		return nil
	}
	more, err := withLink(m.c.VNet)
	if err != nil {
		return fmt.Errorf("add a link: %w", err)
	}
	if more == nil {
		return nil
	}
	began = time.Now()
	if _, err := m.apply(ctx, Case{VNet: more}, nil); err != nil {
		return fmt.Errorf("up with one more link: %w", err)
	}
	s.Seconds[LinkAdded] = time.Since(began).Seconds()
	return nil
}

// down takes the network down.
func (m *measurement) down(ctx context.Context, s *Sample) error {
	before, err := m.meters.read()
	if err != nil {
		return err
	}
	began := time.Now()
	if err := m.delete(ctx); err != nil {
		return fmt.Errorf("down: %w", err)
	}
	s.Seconds[Down] = time.Since(began).Seconds()
	after, err := m.meters.read()
	if err != nil {
		return err
	}
	set(s.CPU, CPUDown, after.machineCPU-before.machineCPU)
	set(s.CPU, CPUServiceDown, after.serviceCPU-before.serviceCPU)
	set(s.Bytes, ServiceDown, after.rss)
	return nil
}

// rest leaves the machine alone for the settling time.
func (m *measurement) rest(ctx context.Context, phase string) error {
	m.report(&trellisv1.Progress{Phase: phase})
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(m.Settle):
		return nil
	}
}

// report passes progress on, with the case in front of the detail.
func (m *measurement) report(p *trellisv1.Progress) {
	if m.Progress == nil {
		return
	}
	detail := m.title
	if p.GetDetail() != "" {
		detail = strings.Join([]string{detail, p.GetDetail()}, ": ")
	}
	m.Progress(&trellisv1.Progress{Phase: p.GetPhase(), Done: p.GetDone(), Total: p.GetTotal(), Detail: detail})
}
