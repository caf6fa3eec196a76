package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// event is a line of `go test -json`; see `go doc test2json`.
type event struct {
	Action     string
	Package    string
	ImportPath string
	Test       string
	Output     string
	Elapsed    float64 // seconds, of a test or package that has ended
}

// report turns events into text and counts. Several runs may report at once.
type report struct {
	mu                      sync.Mutex
	w                       io.Writer
	passed, failed, skipped int
	// output holds what unfinished tests have written, by package and test. The
	// package's own is under the empty name.
	output map[suite]map[string]*strings.Builder
	// broken holds the packages that have a failed test to show for their failure.
	broken map[suite]bool
	times  []timing // of tests that are no part of another
	phases []timing // in the order of their ends
}

// suite is a package's tests in one run: another run may have them at the same time.
type suite struct{ run, pkg string }

// timing is what a test, or a phase, took.
type timing struct {
	what    string
	seconds float64
}

const (
	// mostSlow bounds the tests that the summary names for their time.
	mostSlow = 10
	// slow is from when on a test is named, in seconds.
	slow = 5
)

func newReport(w io.Writer) *report {
	return &report{w: w, output: make(map[suite]map[string]*strings.Builder), broken: make(map[suite]bool)}
}

// parsePhases reads "lint 12,build 3". What is none is left out.
func parsePhases(text string) (phases []timing) {
	for part := range strings.SplitSeq(text, ",") {
		name, seconds, _ := strings.Cut(part, " ")
		if n, err := strconv.ParseFloat(seconds, 64); err == nil {
			phases = append(phases, timing{name, n})
		}
	}
	return phases
}

// phase notes what a phase has taken.
func (r *report) phase(name string, took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.phases = append(r.phases, timing{name, took.Seconds()})
}

// line takes one line of a run's output. What is not an event is passed on.
func (r *report) line(run string, line []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var e event
	if err := json.Unmarshal(line, &e); err != nil {
		r.w.Write(line)
		return
	}
	r.event(run, e)
}

func (r *report) event(run string, e event) {
	s := suite{run, e.Package}
	switch e.Action {
	case "build-output":
		io.WriteString(r.w, e.Output)
	case "output":
		r.keep(s, e)
	case "pass", "fail", "skip":
		if e.Test == "" {
			r.endPackage(s, e)
		} else {
			r.endTest(s, e)
		}
	}
}

// keep stores output until it is known whether it matters.
func (r *report) keep(s suite, e event) {
	tests := r.output[s]
	if tests == nil {
		tests = make(map[string]*strings.Builder)
		r.output[s] = tests
	}
	b := tests[e.Test]
	if b == nil {
		b = new(strings.Builder)
		tests[e.Test] = b
	}
	b.WriteString(e.Output)
}

// endTest counts a test and shows it unless it passed.
func (r *report) endTest(s suite, e event) {
	text := ""
	if b := r.output[s][e.Test]; b != nil {
		text = b.String()
	}
	delete(r.output[s], e.Test)
	if e.Elapsed >= slow && !strings.Contains(e.Test, "/") {
		r.times = append(r.times, timing{e.Package + " " + e.Test, e.Elapsed})
	}
	switch e.Action {
	case "pass":
		r.passed++
	case "skip":
		r.skipped++
		fmt.Fprintf(r.w, "--- SKIP: %s %s: %s\n", e.Package, e.Test, reason(text))
	case "fail":
		r.failed++
		r.broken[s] = true
		fmt.Fprintf(r.w, "=== FAIL: %s %s%s\n%s", e.Package, e.Test, s.label(), unframed(text))
	}
}

// label tells the run of a failure, where it has a name.
func (s suite) label() string {
	if s.run == "" {
		return ""
	}
	return " (" + s.run + ")"
}

// unframed is a test's output without go test's notes on when it ran.
func unframed(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "=== ") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// reason is what a skipped test said, on one line, without the frame that go
// test puts around it.
func reason(text string) string {
	var words []string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "=== ") || strings.HasPrefix(line, "--- ") {
			continue
		}
		if place, rest, ok := strings.Cut(line, ": "); ok && strings.Contains(place, ".go:") {
			line = rest
		}
		words = append(words, line)
	}
	if len(words) == 0 {
		return "no reason given"
	}
	return strings.Join(words, " ")
}

// endPackage prints go test's closing line of a package, and where the package
// failed otherwise than by a test, everything that it has written.
func (r *report) endPackage(s suite, e event) {
	tests := r.output[s]
	delete(r.output, s)
	own := ""
	if b := tests[""]; b != nil {
		own = b.String()
		delete(tests, "")
	}
	if e.Action == "fail" {
		// A test that never ended: the process crashed or ran out of time.
		for _, name := range sortedKeys(tests) {
			r.failed++
			r.broken[s] = true
			fmt.Fprintf(r.w, "=== FAIL: %s %s%s (did not end)\n%s", e.Package, name, s.label(), unframed(tests[name].String()))
		}
		if !r.broken[s] {
			r.failed++ // it does not build, or failed outside of any test
		}
		io.WriteString(r.w, strings.TrimPrefix(own, "FAIL\n"))
		return
	}
	for line := range strings.Lines(own) {
		if strings.HasPrefix(line, "ok ") {
			io.WriteString(r.w, line)
		}
	}
}

func sortedKeys(m map[string]*strings.Builder) []string {
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// summary prints the slowest tests and the phases, since the suite takes as long as
// they do, and the last line.
func (r *report) summary() {
	slices.SortStableFunc(r.times, func(a, b timing) int { return cmp.Compare(b.seconds, a.seconds) })
	for _, t := range r.times[:min(mostSlow, len(r.times))] {
		fmt.Fprintf(r.w, "%6.1f s  %s\n", t.seconds, t.what)
	}
	if len(r.phases) > 0 {
		var parts []string
		for _, p := range r.phases {
			parts = append(parts, fmt.Sprintf("%s %.0f s", p.what, p.seconds))
		}
		fmt.Fprintf(r.w, "phases: %s\n", strings.Join(parts, ", "))
	}
	fmt.Fprintf(r.w, "%d passed, %d failed, %d skipped\n", r.passed, r.failed, r.skipped)
}
