// Command gotest runs `go test` and prints what matters of it: a line for every
// package, failures in full, skipped tests with their reasons, and a last line
// that counts. Its arguments are go test's; `--` separates several runs, one
// after the other, counted together. Leading NAME=value arguments of a run are
// set in its environment.
//
//	gotest ./internal/... -- CGO_ENABLED=1 -race ./internal/agent
//
// The exit status is 1 where anything failed.
package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
)

func main() {
	r := newReport(os.Stdout)
	failed := false
	for _, args := range split(os.Args[1:]) {
		if err := run(r, args); err != nil {
			fmt.Fprintf(os.Stderr, "go test: %v\n", err)
			failed = true
		}
	}
	r.summary()
	if failed || r.failed > 0 {
		os.Exit(1)
	}
}

// split cuts the arguments at every "--".
func split(args []string) [][]string {
	runs := [][]string{nil}
	for _, a := range args {
		if a == "--" {
			runs = append(runs, nil)
			continue
		}
		runs[len(runs)-1] = append(runs[len(runs)-1], a)
	}
	return runs
}

// isSetting reports whether an argument sets a variable of the environment.
func isSetting(arg string) bool {
	name, _, ok := strings.Cut(arg, "=")
	return ok && name == strings.ToUpper(name) && !strings.HasPrefix(name, "-")
}

// run runs one `go test` and reports on its events as they come.
func run(r *report, args []string) error {
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
			r.line(line)
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
