// Package paper repeats the evaluations of the papers that Trellis comes from, as
// far as one machine can, and sets them beside the papers' own figures in one
// HTML file.
package paper

import (
	"context"
	"fmt"
	"time"

	trellisv1 "trellis/api/trellis/v1"
	"trellis/internal/bench"
	"trellis/internal/bench/deploy"
	"trellis/internal/bench/forward"
	"trellis/internal/bench/tcp"
)

// Config says how to measure.
type Config struct {
	// Quick takes a minute or so, for a try: figures of single short runs.
	Quick bool
	Force bool // measure beside real traffic, too
	// Deploy brings networks up and down; nil: this part is left out.
	Deploy func(ctx context.Context, quick bool, progress func(*trellisv1.Progress)) (deploy.Report, error)
	// Progress is told how far it is; nil: nobody.
	Progress func(*trellisv1.Progress)
}

// Report is all that was measured; its JSON form is stable.
type Report struct {
	Bench   string        `json:"bench"` // "paper"
	Machine bench.Machine `json:"machine"`
	Quick   bool          `json:"quick"`
	Seconds float64       `json:"seconds"` // that it took
	// Technologies are all configurations with frames of 64 bytes.
	Technologies forward.Report `json:"technologies"`
	Sizes        forward.Report `json:"sizes"`
	Routers      forward.Report `json:"routers"`
	Tables       forward.Report `json:"tables"`
	Sweeps       forward.Report `json:"sweeps"`
	TCP          tcp.Report     `json:"tcp"`
	Deploy       *deploy.Report `json:"deploy,omitempty"`
}

// part is a step of the whole.
type part struct {
	name    string
	seconds float64 // about, on a machine of 2026
	run     func(ctx context.Context, progress func(*trellisv1.Progress)) error
}

// configurations of parts that do not measure all.
var (
	sizeConfigs  = []string{forward.Native, forward.VethBridge, forward.Shortbridge, forward.VXLANMirred, forward.EGREStack, forward.EGREFast}
	tableConfigs = []string{forward.Native, forward.EGREStack, forward.EGREFast}
	sweepConfigs = []string{
		forward.Native, forward.Macvlan, forward.VethBridge, forward.VXLANMirred, forward.UserPacket, forward.UserXDP, forward.EGREStack, forward.EGREFast,
		forward.VethBridge + "-x3", forward.VethBridge + "-x6", forward.EGREFast + "-x3", forward.EGREFast + "-x6",
	}
)

// parts gives what is measured, into the report.
func (cfg *Config) parts(r *Report) []part {
	measure := func(into *forward.Report, c forward.Config) func(context.Context, func(*trellisv1.Progress)) error {
		return func(ctx context.Context, progress func(*trellisv1.Progress)) (err error) {
			c.Force, c.Progress = true, progress // the machine was looked at already
			*into, err = forward.Run(ctx, c)
			return err
		}
	}
	beside := func(counts ...int) (all []string) {
		for _, n := range counts {
			all = append(all, forward.Beside(n)...)
		}
		return all
	}
	const length, short = 300 * time.Millisecond, 20 * time.Millisecond
	smallest := []forward.Size{forward.MinSize}
	all := []part{
		{"technologies", 70, measure(&r.Technologies, forward.Config{Configs: forward.Standard(), Sizes: smallest, Repeat: 5, Length: length})},
		{"sizes", 140, measure(&r.Sizes, forward.Config{Configs: sizeConfigs, Sizes: []forward.Size{64, 128, 256, 512, 1024, 1518, forward.IMIX}, Repeat: 3, Length: length})},
		{"routers", 100, measure(&r.Routers, forward.Config{Configs: beside(1, 4, 16, 64), Sizes: smallest, Repeat: 3, Length: length})},
		{"tables", 160, measure(&r.Tables, forward.Config{Configs: tableConfigs, Sizes: smallest, Routes: []int{1, 1000, 100_000, forward.MaxRoutes}, Flows: []int{1, 64, forward.MaxFlows}, Repeat: 3, Length: length})},
		{"sweeps", 200, measure(&r.Sweeps, forward.Config{Configs: sweepConfigs, Sizes: smallest, Length: length, Sweep: true, CPU: true})},
	}
	stream, rounds := time.Second, 3
	if cfg.Quick {
		all = []part{
			{"technologies", 14, measure(&r.Technologies, forward.Config{Configs: forward.Standard(), Sizes: smallest, Repeat: 1, Length: short})},
			{"sizes", 10, measure(&r.Sizes, forward.Config{Configs: sizeConfigs, Sizes: []forward.Size{64, 1518}, Repeat: 1, Length: short})},
			{"routers", 8, measure(&r.Routers, forward.Config{Configs: beside(1, 4), Sizes: smallest, Repeat: 1, Length: short})},
			{"tables", 8, measure(&r.Tables, forward.Config{Configs: tableConfigs, Sizes: smallest, Routes: []int{1, 1000}, Flows: []int{1, 64}, Repeat: 1, Length: short})},
			{"sweeps", 8, measure(&r.Sweeps, forward.Config{Configs: []string{forward.Native, forward.VethBridge, forward.EGREFast, forward.EGREFast + "-x3"}, Sizes: smallest, Length: short, Sweep: true, CPU: true})},
		}
		stream, rounds = 100*time.Millisecond, 1
	}
	all = append(all, part{"TCP", 6 + 12*stream.Seconds()*float64(rounds), func(ctx context.Context, progress func(*trellisv1.Progress)) (err error) {
		r.TCP, err = tcp.Run(ctx, tcp.Config{Routers: []int{1, 5}, Length: stream, Repeat: rounds, Progress: progress})
		return err
	}})
	if cfg.Deploy != nil {
		all = append(all, part{"networks", 25, func(ctx context.Context, progress func(*trellisv1.Progress)) error {
			d, err := cfg.Deploy(ctx, cfg.Quick, progress)
			if err == nil {
				r.Deploy = &d
			}
			return err
		}})
	}
	return all
}

// Run measures everything. It needs root.
func Run(ctx context.Context, cfg Config) (r Report, err error) {
	r = Report{Bench: "paper", Quick: cfg.Quick}
	if r.Machine, err = bench.ReadMachine(ctx); err != nil {
		return r, err
	}
	if !cfg.Force {
		if err := bench.CheckIdle(); err != nil {
			return r, err
		}
		if err := checkLoad(r.Machine.Load, r.Machine.Cores); err != nil {
			return r, err
		}
	}
	start := time.Now()
	all := cfg.parts(&r)
	total := 0.0
	for _, p := range all {
		total += p.seconds
	}
	before := 0.0
	for _, p := range all {
		progress := func(m *trellisv1.Progress) {
			if cfg.Progress == nil {
				return
			}
			done := before
			if m.GetTotal() > 0 {
				done += p.seconds * min(1, float64(m.GetDone())/float64(m.GetTotal()))
			}
			cfg.Progress(&trellisv1.Progress{
				Phase: p.name, Done: int32(done), Total: int32(total), Detail: estimate(time.Since(start), done, total) + "; " + m.GetDetail(),
			})
		}
		progress(&trellisv1.Progress{Detail: "begins"})
		if err := p.run(ctx, progress); err != nil {
			return r, fmt.Errorf("%s: %w", p.name, err)
		}
		before += p.seconds
	}
	r.Seconds = time.Since(start).Seconds()
	return r, nil
}

// checkLoad refuses a machine that has something else to do.
func checkLoad(load float64, cores int) error {
	if load > 0.75*float64(cores) {
		return fmt.Errorf("the load average is %.1f on %d cores: something else runs, and figures would be worth little; wait until it is below %.1f, or --force it", load, cores, 0.75*float64(cores))
	}
	return nil
}

// estimate says how long it will take still: by the machine's own pace once some
// of the work is done.
func estimate(elapsed time.Duration, done, total float64) string {
	left := total - done
	if done >= 10 {
		left *= elapsed.Seconds() / done
	}
	if left < 60 {
		return fmt.Sprintf("%.0f s left", max(1, left))
	}
	return fmt.Sprintf("about %.0f min left", left/60)
}
