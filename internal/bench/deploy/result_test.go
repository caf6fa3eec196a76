package deploy

import (
	"encoding/json"
	"flag"
	"math"
	"os"
	"testing"
	"time"

	"trellis/internal/bench"
)

var update = flag.Bool("update", false, "write the golden files anew")

// sample gives a repetition whose figures are all multiples of x.
func sample(x float64) Sample {
	s := Sample{Figures: newFigures[float64](), Phases: []Phase{{"admitted", 0.01 * x}, {"creating", 0.02 * x}}}
	for i, name := range []string{Created, Converged, Unchanged, LinkAdded, Down} {
		s.Seconds[name] = float64(i+1) * x
	}
	for i, name := range []string{CPUUp, CPUDown, CPUServiceUp, CPUServiceDown} {
		s.CPU[name] = float64(i+1) * x / 2
	}
	for i, name := range []string{NodeCgroup, NodeMachine, ServiceIdle, ServiceUp, ServiceDown} {
		s.Bytes[name] = float64(i+1) * x * 1024
	}
	s.Reach = Reach{Method: Loopbacks, Pairs: 12, Reachable: 12}
	return s
}

func TestReportJSON(t *testing.T) {
	broken := sample(4)
	broken.UnchangedChanges = 1
	broken.Reach = Reach{Method: Neighbours, Pairs: 12, Reachable: 11, Failed: []string{"h1 -> r1 (10.0.0.1): status 1: no answer"}}
	r := Result{Name: "ring-3", Source: "ring", Nodes: 3, Links: 3, Routing: "static", Samples: []Sample{sample(1), sample(3), broken}}
	r.Summary = summarize(r.Samples)
	report := Report{
		Bench: "deploy", Service: "v1", Repeat: 3,
		Cases:   []Result{r, {Name: "ring-4", Samples: []Sample{}, Summary: newFigures[bench.Spread](), Error: "up: refused"}},
		Skipped: []Skipped{{"abilene", "not there"}},
		Machine: bench.Machine{CPU: "Z80", Cores: 1, Memory: 65536, Kernel: "6.6", Arch: "amd64", System: "Debian", Versions: map[string]string{"crun": "1"}, Time: time.Unix(0, 0).UTC()},
	}
	got, err := json.MarshalIndent(report, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	got = append(got, '\n')
	const path = "testdata/report.json"
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("the JSON has changed, which programs rely on; if that is meant, run `go test -update`. Now it is:\n%s", got)
	}
}

func TestSummaryLeavesOutWhatWasNotMeasured(t *testing.T) {
	a, b := sample(1), sample(2)
	delete(b.Seconds, LinkAdded)
	set(b.CPU, CPUUp, math.NaN()) // leaves what is there
	set(b.Bytes, "none", math.NaN())
	got := summarize([]Sample{a, b})
	if s := got.Seconds[LinkAdded]; s != (bench.Spread{Median: 4, Min: 4, Max: 4, Samples: 1}) {
		t.Errorf("the link that was added once is summed up as %+v", s)
	}
	if s := got.Seconds[Down]; s != (bench.Spread{Median: 7.5, Min: 5, Max: 10, Samples: 2}) {
		t.Errorf("down is summed up as %+v", s)
	}
	if _, ok := got.Bytes["none"]; ok {
		t.Error("a quantity that was never measured is there")
	}
}

func TestPassed(t *testing.T) {
	unreachable, changing := sample(1), sample(1)
	unreachable.Reach.Reachable--
	changing.UnchangedChanges = 1
	for name, tc := range map[string]struct {
		result Result
		want   bool
	}{
		"good":        {Result{Samples: []Sample{sample(1)}}, true},
		"empty":       {Result{}, false},
		"failed":      {Result{Samples: []Sample{sample(1)}, Error: "x"}, false},
		"unreachable": {Result{Samples: []Sample{sample(1), unreachable}}, false},
		"changing":    {Result{Samples: []Sample{changing}}, false},
	} {
		if got := tc.result.Passed(); got != tc.want {
			t.Errorf("%s: passed is %v", name, got)
		}
	}
}
