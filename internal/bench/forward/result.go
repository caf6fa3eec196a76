package forward

import (
	"slices"

	"trellis/internal/bench"
)

// Report is the outcome of a measurement; its JSON form is stable.
type Report struct {
	Bench   string        `json:"bench"` // "forward"
	Machine bench.Machine `json:"machine"`
	Seconds float64       `json:"seconds"` // of one run of one configuration
	Repeat  int           `json:"repeat"`
	Core    int           `json:"core"` // that everything runs on
	Rows    []Row         `json:"rows"` // by size, then as asked for
	// Generator is what generator and sink cost by themselves, for each size and
	// kind of headers that was measured.
	Generator []Row `json:"generator"`
	// Sweeps are at a pace, where that was asked for.
	Sweeps []Sweep `json:"sweeps,omitempty"`
	// Skipped are the configurations that could not be measured here, and why.
	Skipped []Skipped `json:"skipped"`
}

// Skipped is a configuration that this machine cannot build.
type Skipped struct {
	Config string `json:"config"`
	Reason string `json:"reason"`
}

// Row is what a configuration has shown with frames of one size. Its figures are
// medians over the rounds.
type Row struct {
	Config string `json:"config"`
	Size   Size   `json:"size"` // of a tenant's frame, bytes with the check sequence, or "imix"
	// Routes are in the FIB besides those that are needed, Flows take turns,
	// Routers are side by side; 0: not more than one.
	Routes  int `json:"routes,omitempty"`
	Flows   int `json:"flows,omitempty"`
	Routers int `json:"routers,omitempty"`
	// Kpps is the rate at which frames arrive, in 1000 a second; NS its
	// inverse, the cost of one in nanoseconds.
	Kpps float64 `json:"kpps"`
	NS   float64 `json:"ns"`
	// NSWithoutGenerator is the cost without that of generator and sink, as
	// measured in the same round.
	NSWithoutGenerator float64 `json:"ns_without_generator"`
	// RatioToNative is the rate divided by native's of the same round.
	RatioToNative float64 `json:"ratio_to_native"`
	// Spread is the greatest rate less the least, divided by the median.
	Spread float64 `json:"spread"`
	// Loss is how much of what was sent did not arrive as it should, 0 to 1.
	Loss float64 `json:"loss"`
	// Fairness is Jain's index of what arrived by each of several routers side by
	// side: 1 where it is the same, 1/n where one has all. Median.
	Fairness float64 `json:"fairness,omitempty"`
	// Rounds are the single measurements, in order.
	Rounds []Round `json:"rounds"`
}

// Round is one measurement.
type Round struct {
	Kpps               float64 `json:"kpps"`
	NS                 float64 `json:"ns"`
	NSWithoutGenerator float64 `json:"ns_without_generator"`
	RatioToNative      float64 `json:"ratio_to_native"`
	Sent               uint64  `json:"sent"`
	Arrived            uint64  `json:"arrived"`
	// ArrivedBy is Arrived by each of several routers side by side.
	ArrivedBy []uint64 `json:"arrived_by,omitempty"`
}

// rowOf is the row of a configuration in a scenario, without figures.
func rowOf(c *configuration, sc Scenario) Row {
	sc = sc.of(c)
	r := Row{Config: c.name, Size: sc.Size, Routes: sc.Routes, Routers: c.sides}
	if sc.Flows > 1 {
		r.Flows = sc.Flows
	}
	return r
}

// Jain is the fairness index of shares (Jain, Chiu and Hawe, 1984): 1 where all
// are the same, 1/n where one of n has everything.
func Jain(shares []uint64) float64 {
	sum, squares := 0.0, 0.0
	for _, s := range shares {
		sum += float64(s)
		squares += float64(s) * float64(s)
	}
	if squares == 0 {
		return 1
	}
	return sum * sum / (float64(len(shares)) * squares)
}

// add takes a sample of a round in which generator and native cost so many
// nanoseconds a frame.
func (r *Row) add(s sample, generatorNS, nativeNS float64) {
	r.Rounds = append(r.Rounds, Round{
		Kpps: 1e6 / s.ns, NS: s.ns, NSWithoutGenerator: s.ns - generatorNS, RatioToNative: nativeNS / s.ns,
		Sent: s.sent, Arrived: s.arrived, ArrivedBy: s.routers,
	})
}

// summarize fills in the medians.
func (r *Row) summarize() {
	kpps := r.Over(func(n Round) float64 { return n.Kpps })
	r.Kpps = kpps.Median
	r.NS = r.Over(func(n Round) float64 { return n.NS }).Median
	r.NSWithoutGenerator = r.Over(func(n Round) float64 { return n.NSWithoutGenerator }).Median
	r.RatioToNative = r.Over(func(n Round) float64 { return n.RatioToNative }).Median
	r.Loss = r.Over(Round.loss).Median
	if r.Routers > 0 {
		r.Fairness = r.Over(func(n Round) float64 { return Jain(n.ArrivedBy) }).Median
	}
	if kpps.Median > 0 {
		r.Spread = (kpps.Max - kpps.Min) / kpps.Median
	}
}

// loss is how much of what was sent did not arrive. The generator counts before
// it sends, so that nothing arrives uncounted.
func (n Round) loss() float64 {
	if n.Sent == 0 || n.Arrived >= n.Sent {
		return 0
	}
	return float64(n.Sent-n.Arrived) / float64(n.Sent)
}

// Over sums up a quantity over the rounds.
func (r *Row) Over(quantity func(Round) float64) bench.Spread {
	var samples []float64
	for _, n := range r.Rounds {
		samples = append(samples, quantity(n))
	}
	return bench.Summarize(samples)
}

// skip notes, once, that a configuration cannot be measured here.
func (r *Report) skip(config string, reason error) {
	if !slices.ContainsFunc(r.Skipped, func(s Skipped) bool { return s.Config == config }) {
		r.Skipped = append(r.Skipped, Skipped{Config: config, Reason: reason.Error()})
	}
}
