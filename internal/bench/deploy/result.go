package deploy

import (
	"maps"
	"math"
	"slices"

	"trellis/internal/bench"
	"trellis/internal/vnet"
)

// Report is the outcome of a measurement; its JSON form is stable.
type Report struct {
	Bench   string        `json:"bench"` // "deploy"
	Machine bench.Machine `json:"machine"`
	// Service is the version of the service that was measured.
	Service string `json:"service"`
	// Address is where it was; empty for a throw-away one.
	Address string   `json:"address,omitempty"`
	Repeat  int      `json:"repeat"`
	Cases   []Result `json:"cases"`
	// Skipped names the cases of a suite that could not be tried.
	Skipped []Skipped `json:"skipped,omitempty"`
}

// Skipped is a case that was not tried.
type Skipped struct {
	Name   string `json:"name"`
	Reason string `json:"reason"`
}

// Result is what one case has shown.
type Result struct {
	Name    string `json:"name"`
	Source  string `json:"source"` // a file, or the words that generated it
	Nodes   int    `json:"nodes"`
	Links   int    `json:"links"`
	Routing string `json:"routing"`
	// Samples holds a repetition each, in order.
	Samples []Sample `json:"samples"`
	// Summary is over the samples.
	Summary Figures[bench.Spread] `json:"summary"`
	// Error says why the case ended early; what was measured before it counts.
	Error string `json:"error,omitempty"`
}

// Passed reports whether the case ran to its end, every pair that was tried was
// reachable, and a second up changed nothing.
func (r *Result) Passed() bool {
	if r.Error != "" || len(r.Samples) == 0 {
		return false
	}
	for _, s := range r.Samples {
		if s.Reach.Reachable < s.Reach.Pairs || s.UnchangedChanges > 0 {
			return false
		}
	}
	return true
}

// Sample is one repetition.
type Sample struct {
	Figures[float64]
	// Phases are the service's own, each with the seconds from the request until
	// its first message arrived, in order.
	Phases []Phase `json:"phases"`
	// UnchangedChanges counts the steps of the second up: 0 unless something is
	// wrong.
	UnchangedChanges int   `json:"unchangedChanges"`
	Reach            Reach `json:"reach"`
}

// Phase is a step of an up as its stream tells it.
type Phase struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
}

// Reach is a check of reachability with real packets.
type Reach struct {
	// Method says what was tried: see the constants.
	Method    string   `json:"method"`
	Pairs     int      `json:"pairs"` // each family counts
	Reachable int      `json:"reachable"`
	Failed    []string `json:"failed,omitempty"` // the first few
}

// Methods of checking reachability.
const (
	// Loopbacks: random pairs of nodes, from loopback to loopback, both families.
	Loopbacks = "loopbacks"
	// Neighbours: nodes without routing try the far end of their first link, nodes
	// with routing the loopback of another one that has the same.
	Neighbours = "neighbours"
)

// Figures are quantities by name; one that could not be measured is absent.
type Figures[T any] struct {
	Seconds map[string]T `json:"seconds"`
	CPU     map[string]T `json:"cpuSeconds"`
	Bytes   map[string]T `json:"bytes"`
}

// Names of seconds, by a stop-watch at the client unless it says otherwise.
const (
	// Created: until every node and link was in place, as the service tells it.
	Created = "created"
	// Converged: until up returned, which is when every node had its routes.
	Converged = "converged"
	// Unchanged: a second up of the same description.
	Unchanged = "unchanged"
	// LinkAdded: an up with one more link, until it had converged.
	LinkAdded = "linkAdded"
	// Down: until nothing was left.
	Down = "down"
)

// Names of processor seconds: of the whole machine, the nodes included, and of
// the service with the programs that it has run.
const (
	CPUUp          = "up"
	CPUDown        = "down"
	CPUServiceUp   = "serviceUp"
	CPUServiceDown = "serviceDown"
)

// Names of bytes.
const (
	// NodeCgroup: the mean over the nodes of what their memory control groups
	// are charged with.
	NodeCgroup = "nodeCgroup"
	// NodeMachine: what the machine's available memory fell by, divided by the
	// number of nodes: kernel memory, the service's growth and caches that cannot
	// be dropped included.
	NodeMachine = "nodeMachine"
	// ServiceIdle, ServiceUp, ServiceDown: what the service has in RAM before the
	// network, beside it, and after it.
	ServiceIdle = "serviceIdle"
	ServiceUp   = "serviceUp"
	ServiceDown = "serviceDown"
)

func newFigures[T any]() Figures[T] {
	return Figures[T]{Seconds: map[string]T{}, CPU: map[string]T{}, Bytes: map[string]T{}}
}

// summarize sums up the samples, quantity by quantity.
func summarize(samples []Sample) Figures[bench.Spread] {
	out := newFigures[bench.Spread]()
	for _, part := range []struct {
		of func(Sample) map[string]float64
		to map[string]bench.Spread
	}{
		{func(s Sample) map[string]float64 { return s.Seconds }, out.Seconds},
		{func(s Sample) map[string]float64 { return s.CPU }, out.CPU},
		{func(s Sample) map[string]float64 { return s.Bytes }, out.Bytes},
	} {
		all := map[string][]float64{}
		for _, s := range samples {
			for name, value := range part.of(s) {
				all[name] = append(all[name], value)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(all)) {
			part.to[name] = bench.Summarize(all[name])
		}
	}
	return out
}

// set records a figure, unless it could not be measured (NaN).
func set(to map[string]float64, name string, value float64) {
	if !math.IsNaN(value) {
		to[name] = value
	}
}

func newResult(c Case) Result {
	return Result{
		Name: c.Name, Source: c.Source, Nodes: len(c.VNet.Nodes), Links: len(c.VNet.Links),
		Routing: describeRouting(c.VNet), Samples: []Sample{}, Summary: newFigures[bench.Spread](),
	}
}

// Case is a network to measure.
type Case struct {
	Name   string
	Source string // where it comes from, for people
	VNet   *vnet.VNet
}
