// Command gotest runs `go test` and prints what matters of it: a line for every
// package, failures in full, skipped tests with their reasons, and at the end the
// slowest tests, the time of each phase, and a line that counts.
//
// Its arguments are go test's. `--` separates runs, which follow one another. After
// `then N`, the runs wait for all before it, and go on N at once: each begins, in
// order, when one has ended. All are counted together. Before a run's arguments may
// stand its name, with a colon, and NAME=value settings of its environment.
//
//	gotest measuring: -p 1 -run Rate ./internal/... then 2 plain: ./... -- race: CGO_ENABLED=1 -race ./internal/agent
//
// TRELLIS_TEST_PHASES names phases that went before, as "lint 12,build 3" (seconds).
// The exit status is 1 where anything failed.
package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

func main() {
	r := newReport(os.Stdout)
	r.phases = parsePhases(os.Getenv("TRELLIS_TEST_PHASES"))
	var failed atomic.Bool
	for i, stage := range split(os.Args[1:], "then") {
		atOnce := 1
		if i > 0 {
			var err error
			if stage, atOnce, err = parseAtOnce(stage); err != nil {
				fmt.Fprintf(os.Stderr, "gotest: %v\n", err)
				os.Exit(2)
			}
		}
		var runs errgroup.Group
		runs.SetLimit(atOnce)
		for _, args := range split(stage, "--") {
			runs.Go(func() error {
				if err := run(r, args); err != nil {
					fmt.Fprintf(os.Stderr, "go test: %v\n", err)
					failed.Store(true)
				}
				return nil
			})
		}
		_ = runs.Wait() // none gives one
	}
	r.summary()
	if failed.Load() || r.failed > 0 {
		os.Exit(1)
	}
}

// split cuts the arguments at every separator.
func split(args []string, separator string) [][]string {
	parts := [][]string{nil}
	for _, a := range args {
		if a == separator {
			parts = append(parts, nil)
			continue
		}
		parts[len(parts)-1] = append(parts[len(parts)-1], a)
	}
	return parts
}

// parseAtOnce reads how many runs of a stage go on at once, which its arguments begin with.
func parseAtOnce(stage []string) (rest []string, n int, err error) {
	if len(stage) > 0 {
		n, err = strconv.Atoi(stage[0])
	}
	if n < 1 || err != nil {
		return nil, 0, fmt.Errorf("`then` without the number of runs that go on at once: %q", strings.Join(stage, " "))
	}
	return stage[1:], n, nil
}

// isSetting reports whether an argument sets a variable of the environment.
func isSetting(arg string) bool {
	name, _, ok := strings.Cut(arg, "=")
	return ok && name == strings.ToUpper(name) && !strings.HasPrefix(name, "-")
}

// run runs one `go test` and reports on its events as they come.
func run(r *report, args []string) error {
	name := "tests"
	if len(args) > 0 && strings.HasSuffix(args[0], ":") {
		name, args = strings.TrimSuffix(args[0], ":"), args[1:]
	}
	begun := time.Now()
	defer func() { r.phase(name, time.Since(begun)) }()
	env := 0
	for env < len(args) && isSetting(args[env]) {
		env++
	}
	cmd := exec.Command("go", append([]string{"test", "-json"}, args[env:]...)...)
	cmd.Env = append(os.Environ(), args[:env]...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	lines := bufio.NewReader(out)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			r.line(name, line)
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return fmt.Errorf("read the events: %w", err)
		}
	}
	return cmd.Wait()
}
