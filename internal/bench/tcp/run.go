// Package tcp measures what a link costs: the rate of one TCP stream through a
// chain of routers on one machine, over Trellis's shortbridges and over plain
// veth pairs, with and without transmit checksum offload.
//
// The nodes are network namespaces without containers, which are no part of the
// packets' way. All kinds of links are built side by side and measured in turns,
// so that what else the machine does hits all alike.
package tcp

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	trellisv1 "trellis/api/trellis/v1"
	"trellis/internal/bench"
	"trellis/internal/vnet"
)

// MaxRouters bounds the chain; TTL 64 is not far.
const MaxRouters = 60

// Config says what to measure.
type Config struct {
	Routers []int         // lengths of the chains, each 0 to MaxRouters
	Length  time.Duration // of one stream, after its warm-up
	Repeat  int           // at least 1
	// Progress is told how far it is; nil: nobody.
	Progress func(*trellisv1.Progress)
}

// Run measures. It needs root. The report holds the rounds that were completed
// until an error.
func Run(ctx context.Context, cfg Config) (report Report, err error) {
	report = Report{Bench: "tcp", MTU: vnet.DefaultMTU, Seconds: cfg.Length.Seconds(), Repeat: cfg.Repeat, Cases: []Result{}}
	if os.Geteuid() != 0 {
		return report, errors.New("measuring needs root: it makes network namespaces; run it with sudo")
	}
	if report.Machine, err = bench.ReadMachine(ctx); err != nil {
		return report, err
	}
	for i, k := range cfg.Routers {
		result, err := measure(ctx, cfg, i)
		if err != nil {
			return report, fmt.Errorf("a chain of %d routers: %w", k, err)
		}
		report.Cases = append(report.Cases, result)
	}
	return report, nil
}

// measure measures one length of chain.
func measure(ctx context.Context, cfg Config, at int) (r Result, err error) {
	k := cfg.Routers[at]
	r = Result{Routers: k, Samples: map[Kind][]float64{}}
	paths := map[Kind]*path{}
	defer func() {
		for _, p := range paths {
			err = errors.Join(err, p.close())
		}
	}()
	for _, kind := range kinds {
		if paths[kind], err = newPath(k, kind); err != nil {
			delete(paths, kind)
			return r, err
		}
	}
	total := len(cfg.Routers) * cfg.Repeat * len(kinds)
	done := at * cfg.Repeat * len(kinds)
	for range cfg.Repeat {
		for _, kind := range kinds {
			if cfg.Progress != nil {
				cfg.Progress(&trellisv1.Progress{
					Phase: "measuring", Done: int32(done), Total: int32(total),
					Detail: fmt.Sprintf("%d routers, %s", k, kind),
				})
			}
			from, to, address, err := paths[kind].ends()
			if err != nil {
				return r, err
			}
			rate, err := stream(ctx, from, to, address, cfg.Length)
			if err != nil {
				return r, fmt.Errorf("%s: %w", kind, err)
			}
			r.Samples[kind] = append(r.Samples[kind], rate)
			done++
		}
	}
	r.summarize()
	return r, nil
}
