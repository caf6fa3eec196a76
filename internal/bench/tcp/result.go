package tcp

import "trellis/internal/bench"

// Kind says what the links of a path are.
type Kind string

// Kinds of links.
const (
	// Shortbridge: as Trellis makes them, by the same packages: a port for each
	// interface, joined by programs.
	Shortbridge Kind = "shortbridge"
	// Veth: one veth pair from node to node, as the kernel makes it.
	Veth Kind = "veth"
	// VethNoOffload: the same with transmit checksum offload off at both ends,
	// and with it segmentation offload: as containerlab sets it.
	VethNoOffload Kind = "veth-no-offload"
)

// kinds are measured in turns in this order.
var kinds = []Kind{Shortbridge, VethNoOffload, Veth}

// Report is the outcome of a measurement; its JSON form is stable.
type Report struct {
	Bench   string        `json:"bench"` // "tcp"
	Machine bench.Machine `json:"machine"`
	MTU     int           `json:"mtu"`     // bytes of IP packet
	Seconds float64       `json:"seconds"` // of one stream that count
	Repeat  int           `json:"repeat"`
	Cases   []Result      `json:"cases"`
}

// Result is what a chain of routers has shown. Rates are what arrives, in 10⁹
// bits of TCP payload a second.
type Result struct {
	Routers int                   `json:"routers"`
	Samples map[Kind][]float64    `json:"gbits"`
	Summary map[Kind]bench.Spread `json:"summary"`
	// Ratio holds the rate over shortbridges divided by that over each other
	// kind, round by round: both rates of a ratio are measured one after the
	// other.
	Ratio map[Kind]bench.Spread `json:"shortbridgeRatio"`
}

// summarize fills in the summary and the ratios.
func (r *Result) summarize() {
	r.Summary, r.Ratio = map[Kind]bench.Spread{}, map[Kind]bench.Spread{}
	for _, k := range kinds {
		r.Summary[k] = bench.Summarize(r.Samples[k])
		if k == Shortbridge {
			continue
		}
		var ratios []float64
		for i := range min(len(r.Samples[k]), len(r.Samples[Shortbridge])) {
			ratios = append(ratios, r.Samples[Shortbridge][i]/r.Samples[k][i])
		}
		r.Ratio[k] = bench.Summarize(ratios)
	}
}
