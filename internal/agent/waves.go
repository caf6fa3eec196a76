package agent

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"trellis/internal/agent/reconcile"
)

// Hundreds of routing daemons that start at once starve each other: hellos are late,
// adjacencies flap, and each flap is more work. So nodes with daemons are released in
// waves, the next when the machine has caught up with the one before, or does not in
// a moment.
const (
	waveTimeout = time.Second           // the longest pause between two waves
	wavePoll    = 20 * time.Millisecond // how often the machine is looked at meanwhile
)

// waveSize is how many nodes with daemons are released at once.
func waveSize() int { return 8 * runtime.GOMAXPROCS(0) }

// waves reports whether what is released are so many nodes with daemons that they
// start in waves.
func (r *runner) waves(steps []reconcile.Step) bool {
	if len(steps) <= waveSize() || steps[0].Op != reconcile.Release {
		return false
	}
	count := 0
	for _, s := range steps {
		if len(r.nodes[s.Node].Daemons.Services) > 0 {
			count++
		}
	}
	return count > waveSize()
}

// catchUp waits until no more threads want to run than the cores can take on soon,
// for waveTimeout at most.
func catchUp(ctx context.Context) error {
	deadline := time.After(waveTimeout)
	tick := time.NewTicker(wavePoll)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-deadline:
			return nil
		case <-tick.C:
		}
		running, err := runnable()
		if err != nil {
			return err
		}
		if running <= 2*runtime.NumCPU() {
			return nil
		}
	}
}

// runnable is how many threads of the machine run or are ready to (procs_running in
// proc_stat(5)).
func runnable() (int, error) {
	f, err := os.Open("/proc/stat")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if v, ok := strings.CutPrefix(lines.Text(), "procs_running "); ok {
			return strconv.Atoi(v)
		}
	}
	return 0, fmt.Errorf("%s does not say how many threads run", f.Name())
}
