package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	trellisv1 "trellis/api/trellis/v1"
	"trellis/internal/bench/deploy"
	"trellis/internal/bench/paper"
	"trellis/internal/vnet"
)

func newBenchPaperCommand(env *Env) *cobra.Command {
	var (
		cfg     paper.Config
		output  *choice
		network bool
	)
	cmd := &cobra.Command{
		Use:   "paper [FILE.html]",
		Short: "Repeat the evaluations of the papers, and write one page that compares",
		Long: lines(
			"Repeat what the papers measured that Trellis comes from (2007 to 2012), as far as one",
			"machine can, and write one HTML file, paper.html by default: what was asked, what they",
			"measured, what this machine measures. It takes less than 30 minutes, and all of it",
			"happens in namespaces and directories of its own.",
			"",
			"A machine that is busy or carries real traffic is refused, unless forced."),
		Example: lines(
			"  sudo trellis bench paper",
			"  sudo trellis bench paper --quick /tmp/try.html",
			"  sudo trellis bench paper -o json >paper.json"),
		Args: between(0, "FILE.html"),
		RunE: func(cmd *cobra.Command, args []string) error {
			file := "paper.html"
			if len(args) > 0 {
				file = args[0]
			}
			if os.Geteuid() != 0 {
				return errors.New("measuring needs root: it makes network namespaces; run it with sudo")
			}
			// Half an hour's work should not end at a directory that is not there.
			page, err := newPage(file)
			if err != nil {
				return err
			}
			defer page.discard()
			ctx, stop := interruptible(cmd)
			defer stop()
			bar := newProgress(env.Stderr)
			defer bar.finish()
			cfg.Progress = bar.update
			if network {
				cfg.Deploy = func(ctx context.Context, quick bool, progress func(*trellisv1.Progress)) (deploy.Report, error) {
					return env.paperNetworks(ctx, bar, quick, progress)
				}
			}
			report, err := paper.Run(ctx, cfg)
			bar.finish()
			if err != nil {
				if interrupted(ctx) {
					return errors.New("interrupted; nothing is written, and the namespaces of the measurement are gone")
				}
				return err
			}
			if err := page.write(report.WriteHTML); err != nil {
				return err
			}
			return env.print(output, report, func(w io.Writer) {
				fmt.Fprintf(w, "Wrote %s after %.0f s\n", file, report.Seconds)
			})
		},
		ValidArgsFunction: completeFiles,
	}
	f := cmd.Flags()
	f.BoolVar(&cfg.Quick, "quick", false, "one short run of everything, to see whether it works")
	f.BoolVar(&cfg.Force, "force", false, "measure although the machine is busy")
	f.BoolVar(&network, "networks", true, "bring networks up and down, too, on a throw-away service")
	output = outputFlag(cmd)
	return cmd
}

// paperNetworks brings up and takes down networks as large as those of the time.
func (e *Env) paperNetworks(ctx context.Context, bar *progress, quick bool, progress func(*trellisv1.Progress)) (report deploy.Report, err error) {
	rings, rounds := []int{10, 100}, 3
	if quick {
		rings, rounds = []int{3}, 1
	}
	cfg := deploy.Config{Repeat: rounds, Sample: 100, Settle: 100 * time.Millisecond, Timeout: 5 * time.Minute, Progress: progress}
	for _, n := range rings {
		v, err := deploy.Ring(n, vnet.Routing{Protocol: vnet.Static})
		if err != nil {
			return report, err
		}
		cfg.Cases = append(cfg.Cases, deploy.Case{Name: v.Name, Source: fmt.Sprintf("a ring of %d nodes", n), VNet: v})
	}
	err = e.withThrowaway(ctx, bar, func(service *deploy.Service) error {
		report, err = deploy.Run(ctx, service.Client(), cfg)
		return err
	})
	if err != nil {
		return report, err
	}
	for i := range report.Cases {
		if c := &report.Cases[i]; !c.Passed() {
			return report, fmt.Errorf("the network %s did not come up as it should: %s", c.Name, c.Error)
		}
	}
	return report, nil
}

// page is a file that takes its name only when it is whole.
type page struct {
	name string
	temp *os.File
}

func newPage(name string) (*page, error) {
	if info, err := os.Stat(name); err == nil && !info.Mode().IsRegular() {
		return nil, usagef("%s is no file that could be written anew; name another", name)
	}
	temp, err := os.CreateTemp(filepath.Dir(name), ".paper-*.html")
	if err != nil {
		return nil, fmt.Errorf("write %s: %w; name a file in a directory that is there and writable", name, err)
	}
	return &page{name: name, temp: temp}, nil
}

// write fills the file and gives it its name.
func (p *page) write(fill func(io.Writer) error) error {
	const mode = 0o644
	err := errors.Join(fill(p.temp), p.temp.Chmod(mode), p.temp.Sync(), p.temp.Close())
	if err == nil {
		err = os.Rename(p.temp.Name(), p.name)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", p.name, err)
	}
	p.temp = nil
	return nil
}

// discard removes what has not got its name.
func (p *page) discard() {
	if p.temp != nil {
		_ = p.temp.Close() // the file goes
		_ = os.Remove(p.temp.Name())
	}
}
