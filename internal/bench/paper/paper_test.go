package paper

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	trellisv1 "trellis/api/trellis/v1"
	"trellis/internal/bench"
	"trellis/internal/bench/deploy"
	"trellis/internal/bench/forward"
	"trellis/internal/bench/tcp"
	"trellis/test/testenv"
)

// row makes a row of two rounds.
func row(config string, size forward.Size, kpps, ratio float64) forward.Row {
	r := forward.Row{Config: config, Size: size, Kpps: kpps, NS: 1e6 / kpps, RatioToNative: ratio}
	for _, f := range []float64{0.95, 1.05} {
		r.Rounds = append(r.Rounds, forward.Round{Kpps: kpps * f, RatioToNative: ratio * f})
	}
	return r
}

// sample is a report by hand.
func sample() *Report {
	r := &Report{Bench: "paper", Quick: true, Seconds: 600, Machine: bench.Machine{CPU: "Z80 <8 MHz>", Cores: 2, Memory: 1 << 30, Kernel: "6.6", Time: time.Unix(0, 0).UTC()}}
	for i, config := range forward.Standard() {
		if config != forward.GREInside {
			r.Technologies.Rows = append(r.Technologies.Rows, row(config, 64, 1000, 1/float64(i+1)))
		}
	}
	r.Technologies.Skipped = []forward.Skipped{{Config: forward.GREInside, Reason: "the kernel has no GRE devices & more"}}
	for _, size := range []forward.Size{64, 1518, forward.IMIX} {
		for _, config := range sizeConfigs {
			r.Sizes.Rows = append(r.Sizes.Rows, row(config, size, 1000, 0.5))
		}
	}
	for _, n := range []int{1, 64} {
		for _, config := range forward.Beside(n) {
			one := row(config, 64, 1000/float64(n), 0.5)
			one.Routers, one.Fairness = n, 0.9876
			r.Routers.Rows = append(r.Routers.Rows, one)
		}
	}
	for _, routes := range []int{1, 1000} {
		for _, config := range tableConfigs {
			one := row(config, 64, 1000, 1)
			one.Routes = routes
			r.Tables.Rows = append(r.Tables.Rows, one)
		}
	}
	for _, config := range []string{forward.Native, forward.VethBridge, forward.EGREFast + "-x3"} {
		s := forward.Sweep{Config: config, Size: 64, Saturation: 1000, CPU: []forward.Share{{Part: "bridge", Share: 0.18}}}
		for i := range 5 {
			p := forward.Point{Offered: 400 * float64(i+1), Kpps: 400 * min(2.5, float64(i+1)), Arrived: 10, Latency: forward.Latency{P50: 4000, P99: 123456}}
			if strings.HasSuffix(config, "x3") {
				s.Routers, p.ArrivedBy, p.Fairness = 3, []uint64{5, 3, 2}, 0.8772
			}
			s.Points = append(s.Points, p)
		}
		r.Sweeps.Sweeps = append(r.Sweeps.Sweeps, s)
	}
	r.TCP = tcp.Report{MTU: 1500, Cases: []tcp.Result{{Routers: 5, Summary: map[tcp.Kind]bench.Spread{tcp.Shortbridge: {Median: 15.25, Samples: 1}}}}}
	r.Deploy = &deploy.Report{Cases: []deploy.Result{{Name: "ring-10", Nodes: 10, Links: 10, Routing: "static", Summary: deploy.Figures[bench.Spread]{
		Seconds: map[string]bench.Spread{deploy.Created: {Median: 0.1, Samples: 1}},
	}}}}
	return r
}

var anyTag = regexp.MustCompile(`(?s)<(style|svg).*?</(style|svg)>|<[^>]*>`)

func TestHTML(t *testing.T) {
	var b strings.Builder
	if err := sample().WriteHTML(&b); err != nil {
		t.Fatal(err)
	}
	text := anyTag.ReplaceAllString(b.String(), " ")
	for _, want := range []string{
		"A quick run", "Z80 &lt;8 MHz&gt;", "then and now", "GRE devices &amp; more", "0.67", "109.5 s", "1,095 times as fast", "123.5 µs",
		"0.9876", "bridge 18, veth 2.3", "15.25", "ring-10: 10 nodes", "Bhatia", "64 routers keep 0.02",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the page does not say %q", want)
		}
	}
	for _, never := range []string{"NaN", "Inf", "<no value>", "ZgotmplZ", "http://www.w3.org/1999"} {
		if strings.Contains(b.String(), never) {
			t.Errorf("the page says %s", never)
		}
	}
	// One file: no script, nothing from elsewhere.
	for _, never := range []string{"<script", "src=", "@import", "url("} {
		if strings.Contains(b.String(), never) {
			t.Errorf("the page has %s", never)
		}
	}
	if n := strings.Count(b.String(), "<svg "); n != 6 {
		t.Errorf("the page has %d drawings", n)
	}
	// Every tag that is opened is closed.
	d := xml.NewDecoder(strings.NewReader(strings.ReplaceAll(b.String(), "<!doctype html>", "")))
	d.Strict, d.Entity = true, xml.HTMLEntity
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// What was not measured leaves its place empty.
func TestEmptyReport(t *testing.T) {
	var b strings.Builder
	if err := new(Report).WriteHTML(&b); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(b.String(), "not measured here") || strings.Contains(b.String(), "NaN") {
		t.Error("the page of an empty report")
	}
	if _, err := json.Marshal(sample()); err != nil {
		t.Error(err)
	}
}

func TestEstimate(t *testing.T) {
	for _, tc := range []struct {
		elapsed     time.Duration
		done, total float64
		want        string
	}{
		{time.Second, 1, 600, "about 10 min left"}, {100 * time.Second, 50, 100, "about 2 min left"}, {time.Minute, 80, 100, "15 s left"}, {time.Minute, 100, 100, "1 s left"},
	} {
		if got := estimate(tc.elapsed, tc.done, tc.total); got != tc.want {
			t.Errorf("after %v, %v of %v: %q, want %q", tc.elapsed, tc.done, tc.total, got, tc.want)
		}
	}
}

func TestBusyMachine(t *testing.T) {
	if err := checkLoad(1.5, 2); err != nil {
		t.Error(err)
	}
	err := checkLoad(1.6, 2)
	for _, want := range []string{"1.6", "2 cores", "--force"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("a busy machine: %v does not say %q", err, want)
		}
	}
}

// The parts must fit the half hour that the help promises, with room.
func TestParts(t *testing.T) {
	for _, quick := range []bool{false, true} {
		total, names := 0.0, map[string]bool{}
		cfg := Config{Quick: quick}
		for _, p := range cfg.parts(new(Report)) {
			total += p.seconds
			if names[p.name] || p.seconds <= 0 {
				t.Errorf("part %s takes %v s", p.name, p.seconds)
			}
			names[p.name] = true
		}
		if limit := map[bool]float64{false: 20 * 60, true: 90}[quick]; total > limit {
			t.Errorf("quick %v: %v s", quick, total)
		}
	}
}

// Everything once, in short. What it makes is looked at, not how fast it is: it runs
// beside others.
func TestQuick(t *testing.T) {
	testenv.NeedRoot(t, "makes network namespaces")
	last := int32(0)
	r, err := Run(t.Context(), Config{Quick: true, Force: true, Progress: func(p *trellisv1.Progress) {
		if p.GetDone() < last || p.GetDone() > p.GetTotal() || !strings.Contains(p.GetDetail(), " left; ") {
			t.Errorf("after %d, %v", last, p)
		}
		last = p.GetDone()
	}})
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := r.WriteHTML(&b); err != nil {
		t.Fatal(err)
	}
	for _, never := range []string{"NaN", "Inf", "<no value>"} {
		if strings.Contains(b.String(), never) {
			t.Errorf("the page says %s", never)
		}
	}
	if len(r.Technologies.Rows) < 10 || len(r.Sizes.Rows) == 0 || len(r.Routers.Rows) == 0 || len(r.Tables.Rows) == 0 || len(r.Sweeps.Sweeps) == 0 || len(r.TCP.Cases) != 2 || r.Seconds <= 0 {
		t.Errorf("the report is %+v", r)
	}
}

func TestPlots(t *testing.T) {
	r := sample()
	for _, tc := range []struct {
		of   *forward.Report
		want []string
	}{
		{&r.Technologies, []string{"technologies.svg"}}, {&r.Sizes, []string{"sizes.svg", "technologies.svg"}}, {&r.Routers, []string{"routers.svg"}},
		{&r.Tables, []string{"technologies.svg"}}, {&r.Sweeps, []string{"latency.svg", "throughput.svg"}}, {new(forward.Report), nil},
	} {
		plots := Plots(tc.of)
		if got := slices.Sorted(maps.Keys(plots)); !slices.Equal(got, tc.want) {
			t.Errorf("drawings are %v, want %v", got, tc.want)
		}
		if svg := plots["technologies.svg"]; tc.of == &r.Technologies && strings.Count(svg, forward.EGREFlows+"<") != 1 {
			t.Errorf("a configuration of many flows is not drawn: %s", svg)
		}
		for name, svg := range plots {
			if strings.Contains(svg, "NaN") || !strings.HasPrefix(svg, "<svg ") {
				t.Errorf("%s is %s", name, svg)
			}
		}
	}
}
