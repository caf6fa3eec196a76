package deploy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"connectrpc.com/connect"

	trellisv1 "trellis/api/trellis/v1"
	"trellis/internal/bench"
)

// Parts of the scale suite, in the order in which they run.
const (
	PartZoo   = "zoo"   // many networks come up, some at a time
	PartVerbs = "verbs" // what one verb takes beside them
	PartIdle  = "idle"  // what the service takes while nothing happens
	PartAdopt = "adopt" // the service is killed, and started again
	PartDown  = "down"  // all networks go
	PartGrid  = "grid"  // one network of so many nodes
	PartKdl   = "kdl"   // the largest of the given networks, with FRR and OSPF for both families
)

// ScaleParts are all of them.
var ScaleParts = []string{PartZoo, PartVerbs, PartIdle, PartAdopt, PartDown, PartGrid, PartKdl}

// ScaleConfig says what the scale suite is to do.
type ScaleConfig struct {
	Networks []Case   // what the population and the largest network are taken from
	Parts    []string // of ScaleParts
	Nodes    int      // of the population, and the most of the grid and of the largest network
	Parallel int      // networks that come up at a time
	// Timeout bounds each up and each down of one network, and a quarter of a part.
	Timeout time.Duration
	Settle  time.Duration // how long the machine is left alone before memory is read
	Profile string        // directory for the service's CPU profiles; empty: none
	// Progress is called with how far it is; nil: nobody wants to know.
	Progress func(*trellisv1.Progress)
}

// ScaleReport is the outcome of the scale suite; its JSON form is stable.
type ScaleReport struct {
	Bench    string        `json:"bench"` // "deploy"
	Suite    string        `json:"suite"` // "scale"
	Machine  bench.Machine `json:"machine"`
	Service  string        `json:"service"` // version
	Nodes    int           `json:"nodes"`   // that were asked for
	Parallel int           `json:"parallel"`
	Parts    []*Part       `json:"parts"`
}

// Part is what one part has shown.
type Part struct {
	Name     string   `json:"name"`
	Networks int      `json:"networks"` // that the part is about
	Nodes    int      `json:"nodes"`
	Links    int      `json:"links"`
	Figures  []Figure `json:"figures"`
	// Failures are what went wrong without ending the part: the first few.
	Failures []string `json:"failures,omitempty"`
	// Error says why the part ended early; what was measured before it counts.
	Error string `json:"error,omitempty"`
}

// Figure is one quantity of a part.
type Figure struct {
	Name  string `json:"name"`  // for programs; see docs/benchmarks.md
	Label string `json:"label"` // for people
	Unit  string `json:"unit"`  // s, bytes, nodes/s, % (of one core), or empty: a number
	bench.Spread
}

// Passed reports whether all parts ran to their ends and nothing failed.
func (r *ScaleReport) Passed() bool {
	return !slices.ContainsFunc(r.Parts, func(p *Part) bool { return p.Error != "" || len(p.Failures) > 0 })
}

func (p *Part) add(name, label, unit string, samples ...float64) {
	if s := bench.Summarize(samples); s.Samples > 0 {
		p.Figures = append(p.Figures, Figure{name, label, unit, s})
	}
}

// fail notes a failure that does not end the part.
func (p *Part) fail(format string, args ...any) {
	if len(p.Failures) < mostFailures {
		p.Failures = append(p.Failures, fmt.Sprintf(format, args...))
	}
}

func (p *Part) about(cases []Case) {
	p.Networks = len(cases)
	p.Nodes, p.Links = size(cases)
}

// scale is a run of the suite.
type scale struct {
	ScaleConfig
	service *Service
	others  bench.Others
	part    *Part  // that runs
	up      []Case // of the population, what is up
}

// RunScale runs the scale suite on a throw-away service. The report holds what
// was measured until an error, which is one of ctx; the failure of a part is in
// the part. A part that needs what an earlier one has not brought up is measured
// with what there is.
func RunScale(ctx context.Context, service *Service, cfg ScaleConfig) (ScaleReport, error) {
	report := ScaleReport{Bench: "deploy", Suite: "scale", Nodes: cfg.Nodes, Parallel: cfg.Parallel, Parts: []*Part{}}
	var err error
	if report.Machine, err = bench.ReadMachine(ctx); err != nil {
		return report, err
	}
	info, err := service.Client().Info(ctx, connect.NewRequest(&trellisv1.InfoRequest{}))
	if err != nil {
		return report, fmt.Errorf("ask the service what it is: %w", err)
	}
	report.Service = info.Msg.GetVersion()
	if cfg.Profile != "" {
		if err := os.MkdirAll(cfg.Profile, 0o755); err != nil {
			return report, fmt.Errorf("make the directory for profiles: %w", err)
		}
	}
	s := &scale{ScaleConfig: cfg, service: service}
	if s.others, err = bench.ReadOthers(service.PID()); err != nil {
		return report, err
	}
	for _, part := range []struct {
		name string
		run  func(context.Context) error
	}{
		{PartZoo, s.zoo}, {PartVerbs, s.verbs}, {PartIdle, s.idle}, {PartAdopt, s.adopt},
		{PartDown, s.down}, {PartGrid, s.grid}, {PartKdl, s.kdl},
	} {
		if !slices.Contains(cfg.Parts, part.name) {
			continue
		}
		s.part = &Part{Name: part.name, Figures: []Figure{}}
		report.Parts = append(report.Parts, s.part)
		if err := s.bounded(ctx, part.name, part.run); err != nil {
			s.part.Error = err.Error()
		}
		if ctx.Err() != nil {
			return report, context.Cause(ctx)
		}
	}
	return report, nil
}

// bounded runs a part within its time, and profiles the service meanwhile. The
// part that kills the service is not profiled.
func (s *scale) bounded(ctx context.Context, name string, run func(context.Context) error) error {
	s.progress(0, 0, "settling")
	limit := 4 * s.Timeout
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("the part %s is not done after %s", name, limit))
	defer cancel()
	if s.Profile == "" || name == PartAdopt {
		return run(ctx)
	}
	p := profile(ctx, s.service.home.socket(), s.Profile, name)
	err := run(ctx)
	return errors.Join(err, p.end())
}

// progress reports how many nodes of how many the part has come to.
func (s *scale) progress(done, total int, format string, args ...any) {
	if s.Progress == nil {
		return
	}
	s.Progress(&trellisv1.Progress{Phase: s.part.Name, Done: int32(done), Total: int32(total), Detail: fmt.Sprintf(format, args...)})
}

// rest leaves the machine alone for the settling time.
func (s *scale) rest(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(s.Settle):
		return nil
	}
}

// measurement is for the calls about one network. Where loud is set, the
// service's progress is passed on.
func (s *scale) measurement(c Case, loud bool) *measurement {
	m := &measurement{Config: Config{Timeout: s.Timeout}, client: s.service.Client(), c: c, title: c.Name}
	if loud && s.Progress != nil {
		m.Progress = func(p *trellisv1.Progress) {
			s.progress(int(p.GetDone()), int(p.GetTotal()), "%s: %s", p.GetPhase(), p.GetDetail())
		}
	}
	return m
}

// usage is what machine and service have used at one moment.
type usage struct {
	reading
	kernel float64 // seconds in the kernel, of the machine's
	others float64 // seconds of programs that ran before
	at     time.Time
}

func (s *scale) usage() (usage, error) {
	u := usage{at: time.Now()}
	var err error
	if u.reading, err = (gauge{local: true, pid: s.service.PID()}).read(); err != nil {
		return u, err
	}
	if u.kernel, err = bench.KernelCPU(); err != nil {
		return u, err
	}
	u.others, err = s.others.CPU()
	return u, err
}

// cpu adds what was used since an earlier moment.
func (p *Part) cpu(before, after usage) {
	p.add("cpu", "CPU of the machine", "s", after.machineCPU-before.machineCPU)
	p.add("cpuKernel", "... of that in the kernel", "s", after.kernel-before.kernel)
	p.add("cpuService", "... of that the service and what it ran", "s", after.serviceCPU-before.serviceCPU)
	p.add("cpuOthers", "... of that programs that ran before", "s", after.others-before.others)
}

// weigh adds what is used after the machine has been left alone, since an
// earlier moment.
func (s *scale) weigh(ctx context.Context, before usage) error {
	if err := s.rest(ctx); err != nil {
		return err
	}
	after, err := s.usage()
	if err != nil {
		return err
	}
	s.part.add("memory", "memory taken, everything", "bytes", before.available-after.available)
	return s.counts(ctx, after)
}

// counts adds what the service holds.
func (s *scale) counts(ctx context.Context, now usage) error {
	s.part.add("serviceMemory", "memory of the service", "bytes", now.rss)
	n, err := goroutines(ctx, s.service.home.socket())
	if err != nil {
		return err
	}
	s.part.add("serviceGoroutines", "goroutines of the service", "", float64(n))
	if n, err = bench.ProcessFiles(s.service.PID()); err != nil {
		return err
	}
	s.part.add("serviceFiles", "open files of the service", "", float64(n))
	return nil
}

// list asks for all networks.
func (s *scale) list(ctx context.Context) ([]*trellisv1.Summary, error) {
	list, err := s.service.Client().List(ctx, connect.NewRequest(&trellisv1.ListRequest{}))
	if err != nil {
		return nil, fmt.Errorf("list the networks: %w", err)
	}
	return list.Msg.GetVnets(), nil
}

// timed gives the seconds that a call takes.
func timed(call func() error) (float64, error) {
	began := time.Now()
	err := call()
	return time.Since(began).Seconds(), err
}
