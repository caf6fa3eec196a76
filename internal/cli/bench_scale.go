package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"trellis/internal/bench/deploy"
)

// scaleTimeout bounds an up or a down of the suite where --timeout does not.
const scaleTimeout = 10 * time.Minute

func scaleFlags(f *pflag.FlagSet, cfg *deploy.ScaleConfig) {
	f.StringSliceVar(&cfg.Parts, "parts", deploy.ScaleParts, "what of the suite scale to run")
	f.IntVar(&cfg.Nodes, "nodes", deploy.ZooNodes, "how many nodes the suite scale runs at once")
	f.IntVar(&cfg.Parallel, "parallel", 4, "how many networks of it come up at a time")
	f.StringVar(&cfg.Profile, "profile", "", "write CPU profiles of the service to this directory (suite scale)")
}

// runScale runs the scale suite.
func (e *Env) runScale(cmd *cobra.Command, cfg deploy.ScaleConfig, n *benchNetworks, args []string, output *choice) error {
	switch {
	case n.routing != "" || n.hosts > 0 || len(n.rings)+len(n.trees)+len(n.grids) > 0:
		return usagef("--suite says what to measure; leave --routing and the generators out")
	case e.Address != "":
		return usagef("the suite %s kills its service, so it runs on one of its own; leave --address out", suiteScale)
	case cfg.Nodes < 20:
		return usagef("--nodes %d: the suite %s needs 20 at least", cfg.Nodes, suiteScale)
	case cfg.Parallel < 1:
		return usagef("--parallel %d: one network at a time is the least", cfg.Parallel)
	case len(args) == 0:
		return usagef("name the files that networks are taken from, or their folder; the Internet Topology Zoo has some")
	}
	for _, p := range cfg.Parts {
		if !slices.Contains(deploy.ScaleParts, p) {
			return usagef("--parts %q: there are %s", p, strings.Join(deploy.ScaleParts, ", "))
		}
	}
	files, err := networkFiles(args)
	if err != nil {
		return err
	}
	for _, file := range files {
		v, _, err := e.read(file) // its warnings are for those who want to run it
		if err != nil {
			return &inputError{err}
		}
		cfg.Networks = append(cfg.Networks, deploy.Case{Name: v.Name, Source: file, VNet: v})
	}
	ctx, stop := interruptible(cmd)
	defer stop()
	bar := newProgress(e.Stderr)
	defer bar.finish()
	cfg.Progress = bar.update
	var report deploy.ScaleReport
	err = e.withThrowaway(ctx, bar, func(service *deploy.Service) error {
		report, err = deploy.RunScale(ctx, service, cfg)
		return err
	})
	bar.finish()
	if err != nil { // the sentences about the environment's service do not fit
		err = errors.New(err.Error())
	}
	if len(report.Parts) > 0 {
		err = errors.Join(err, e.print(output, report, func(w io.Writer) { scaleTable(w, &report) }))
	}
	if err == nil && !report.Passed() {
		return exitStatus(exitFailed)
	}
	return err
}

// networkFiles gives the files that are named, and those in the folders that are.
func networkFiles(args []string) ([]string, error) {
	var files []string
	for _, arg := range args {
		entries, err := os.ReadDir(arg)
		if err != nil { // a file, or what reading it will complain about
			files = append(files, arg)
			continue
		}
		found := len(files)
		for _, entry := range entries {
			switch strings.ToLower(filepath.Ext(entry.Name())) {
			case ".graphml", ".yaml", ".yml":
				files = append(files, filepath.Join(arg, entry.Name()))
			}
		}
		if len(files) == found {
			return nil, usagef("the folder %s has no .graphml, .yaml or .yml file", arg)
		}
	}
	return files, nil
}

// scaleTable writes the report for people.
func scaleTable(w io.Writer, r *deploy.ScaleReport) {
	machineLines(w, r.Machine)
	t := newTable("PART", "FIGURE", ">VALUE", "UNIT")
	for i, p := range r.Parts {
		if i > 0 {
			t.add("", "", "", "")
		}
		t.add(p.Name, fmt.Sprintf("%s, %s, %s", count(p.Networks, "network"), count(p.Nodes, "node"), count(p.Links, "link")), "", "")
		for _, f := range p.Figures {
			show, unit := figureText, f.Unit
			switch f.Unit {
			case "s":
				show = secondsText
			case "bytes":
				show, unit = mebibytes, "MiB"
			}
			t.add("", f.Label, spread(f.Spread, show), unit)
		}
	}
	t.write(w)
	for _, p := range r.Parts {
		for _, f := range p.Failures {
			fmt.Fprintf(w, "%s: %s\n", p.Name, oneLine(f))
		}
		if p.Error != "" {
			fmt.Fprintf(w, "%s failed: %s\n", p.Name, oneLine(p.Error))
		}
	}
}

// figureText writes whole numbers as such and others with two decimals.
func figureText(v float64) string {
	if v == float64(int64(v)) {
		return strconv.FormatInt(int64(v), 10)
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}
