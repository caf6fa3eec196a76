package forward

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"time"

	trellisv1 "trellis/api/trellis/v1"
	"trellis/internal/bench"
)

// MaxSeconds bounds one run: the generator counts in 32 bits.
const MaxSeconds = 60

// Config says what to measure.
type Config struct {
	Configs []string      // names, each once
	Sizes   []Size        // of frames
	Routes  []int         // in each FIB besides those that are needed, 0 to MaxRoutes; nil: none
	Flows   []int         // that packets take turns in, powers of two to MaxFlows; nil: one
	Repeat  int           // at least 1; with Sweep 0 is possible: nothing but sweeps
	Force   bool          // measure beside real traffic, too
	Sweep   bool          // sweep the offered load, too
	CPU     bool          // sample the routers' core in each sweep
	Length  time.Duration // of one run, above 0, at most MaxSeconds
	// Progress is told how far it is; nil: nobody.
	Progress func(*trellisv1.Progress)
}

// Run measures. It needs root. Native and the generators are always measured, what
// else is asked for in turns with them. The report holds the sizes that were
// completed until an error.
func Run(ctx context.Context, cfg Config) (report Report, err error) {
	report = Report{Bench: "forward", Seconds: cfg.Length.Seconds(), Repeat: cfg.Repeat, Rows: []Row{}, Generator: []Row{}, Skipped: []Skipped{}}
	if os.Geteuid() != 0 {
		return report, errors.New("measuring needs root: it makes network namespaces; run it with sudo")
	}
	if report.Machine, err = bench.ReadMachine(ctx); err != nil {
		return report, err
	}
	if report.Core, err = lastCore(); err != nil {
		return report, err
	}
	if cfg.Sweep {
		if _, err := secondCore(report.Core); err != nil {
			return report, err
		}
	}
	if !cfg.Force {
		if err := bench.CheckIdle(); err != nil {
			return report, err
		}
	}
	all := cfg.scenarios()
	for i, sc := range all {
		rows, err := measure(ctx, &cfg, &report, sc, i, len(all))
		if err != nil {
			return report, fmt.Errorf("frames of %v: %w", sc, err)
		}
		for _, name := range generators {
			if r, measured := rows[name]; measured {
				report.Generator = append(report.Generator, r)
			}
		}
		for _, name := range cfg.Configs {
			if r, measured := rows[name]; measured {
				report.Rows = append(report.Rows, r)
			}
		}
		if cfg.Sweep {
			if err := sweepAll(ctx, &cfg, &report, sc); err != nil {
				return report, fmt.Errorf("sweep frames of %v: %w", sc, err)
			}
		}
	}
	return report, nil
}

// sweepAll sweeps each configuration in a scenario.
func sweepAll(ctx context.Context, cfg *Config, report *Report, sc Scenario) error {
	for i, name := range cfg.Configs {
		config, err := lookUp(name)
		if err != nil {
			return err
		}
		done := i * sweepSteps
		s, err := sweep(ctx, config, report.Core, sc, cfg.Length, cfg.CPU, func(what string) {
			if cfg.Progress != nil {
				cfg.Progress(&trellisv1.Progress{
					Phase: "sweeping", Done: int32(done), Total: int32(len(cfg.Configs) * sweepSteps), Detail: fmt.Sprintf("%v, %s, %s", sc, name, what),
				})
			}
			done++
		})
		if lack := (*MissingError)(nil); errors.As(err, &lack) {
			report.skip(name, lack)
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		report.Sweeps = append(report.Sweeps, s)
	}
	return nil
}

// scenarios are all combinations of what is asked for.
func (cfg *Config) scenarios() []Scenario {
	var all []Scenario
	for _, size := range cfg.Sizes {
		for _, routes := range orNone(cfg.Routes) {
			for _, flows := range orNone(cfg.Flows) {
				all = append(all, Scenario{Size: size, Routes: routes, Flows: flows})
			}
		}
	}
	return all
}

func orNone(v []int) []int {
	if len(v) == 0 {
		return []int{0}
	}
	return v
}

// contender is a configuration that is built and ready.
type contender struct {
	config *configuration
	rig    *rig
	count  uint32 // frames of a run
	row    Row
}

// contenders gives what has to be measured, in the order of a round: native, with
// which all others are compared, first, and each generator before its kind.
func contenders(names []string) ([]*configuration, error) {
	var order []*configuration
	add := func(name string) error {
		if slices.ContainsFunc(order, func(c *configuration) bool { return c.name == name }) {
			return nil
		}
		c, err := lookUp(name)
		order = append(order, c)
		return err
	}
	for _, name := range append([]string{Native}, names...) {
		c, err := lookUp(name)
		if err != nil {
			return nil, err
		}
		if err := errors.Join(add(c.generator), add(name)); err != nil {
			return nil, err
		}
	}
	return order, nil
}

// measure measures one scenario, the at-th of so many. What cannot be built here is noted in the report.
func measure(ctx context.Context, cfg *Config, report *Report, sc Scenario, at, scenarios int) (rows map[string]Row, err error) {
	order, err := contenders(cfg.Configs)
	if err != nil {
		return nil, err
	}
	if err := checkMemory(order, sc); err != nil {
		return nil, err
	}
	if cfg.Repeat == 0 {
		return nil, nil
	}
	var all []*contender
	defer func() {
		for _, c := range all {
			if e := c.rig.close(); e != nil {
				err = errors.Join(err, fmt.Errorf("remove %s: %w", c.config.name, e))
			}
		}
	}()
	steps := len(order) * (cfg.Repeat + 1)
	done := at * steps
	progress := func(phase, name string) {
		if cfg.Progress != nil {
			cfg.Progress(&trellisv1.Progress{
				Phase: phase, Done: int32(done), Total: int32(scenarios * steps), Detail: fmt.Sprintf("%v, %s", sc, name),
			})
		}
		done++
	}
	for _, config := range order {
		progress("building", config.name)
		c, err := prepare(ctx, config, report.Core, sc, cfg.Length)
		if c != nil {
			all = append(all, c)
		}
		if lack := (*MissingError)(nil); errors.As(err, &lack) {
			report.skip(config.name, lack)
			done += cfg.Repeat
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", config.name, err)
		}
	}
	for range cfg.Repeat {
		round := map[string]sample{}
		for _, c := range all {
			progress("measuring", c.config.name)
			if err := context.Cause(ctx); err != nil {
				return nil, err
			}
			s, err := c.rig.meter.run(c.count)
			if err == nil && s.ns == 0 {
				err = fmt.Errorf("%d frames were sent, and only %d arrived", s.sent, s.arrived)
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", c.config.name, err)
			}
			round[c.config.name] = s
		}
		for _, c := range all {
			c.row.add(round[c.config.name], round[c.config.generator].ns, round[Native].ns)
		}
	}
	rows = map[string]Row{}
	for _, c := range all {
		c.row.summarize()
		rows[c.config.name] = c.row
	}
	return rows, nil
}

// prepare builds a configuration, waits until it forwards, and finds out how
// many frames fill the time.
func prepare(ctx context.Context, config *configuration, core int, sc Scenario, length time.Duration) (*contender, error) {
	r, err := newRig(config, core, sc)
	if err != nil {
		return nil, fmt.Errorf("build it: %w", err)
	}
	c := &contender{config: config, rig: r, row: rowOf(config, sc)}
	if err := c.ready(ctx); err != nil {
		return c, err
	}
	// The second run is the first one with warm caches.
	var s sample
	for range 2 {
		if s, err = r.meter.run(2 * shortest); err != nil {
			return c, err
		}
	}
	if s.ns == 0 {
		return c, fmt.Errorf("%d frames were sent, and only %d arrived", s.sent, s.arrived)
	}
	n := float64(length.Nanoseconds()) / s.ns * float64(s.sent) / float64(s.arrived)
	c.count = uint32(max(shortest, min(n, math.MaxUint32))) &^ (batch - 1)
	return c, nil
}

// ready waits until a few frames get through: carriers are told of a moment
// after devices go up.
func (c *contender) ready(ctx context.Context) error {
	const pause, timeout = 5 * time.Millisecond, 2 * time.Second
	for end := time.Now().Add(timeout); ; time.Sleep(pause) {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		s, err := c.rig.meter.run(batch)
		switch {
		case err == nil && s.arrived > 0:
			return nil
		case time.Now().Before(end):
		case err != nil:
			return err
		default:
			return fmt.Errorf("it forwards nothing: %d frames were sent, and none arrived", s.sent)
		}
	}
}
