package forward

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"trellis/internal/bench"
)

// Size is a size of frames as RFC 2544 counts them, in bytes with the check
// sequence, MinSize to MaxSize; or [IMIX].
type Size int

// IMIX is the mix of sizes that is called simple IMIX: of twelve frames seven
// have 64 bytes, four 594 and one 1518, in turns.
const IMIX Size = -1

// imixSizes and imixTurns are what IMIX is made of: sizes, and which of them
// comes when.
var (
	imixSizes = []int{64, 594, 1518}
	imixTurns = []int{0, 1, 0, 0, 1, 0, 2, 0, 1, 0, 0, 1}
)

// ParseSize reads a size.
func ParseSize(s string) (Size, error) {
	if s == "imix" {
		return IMIX, nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < MinSize || n > MaxSize {
		return 0, fmt.Errorf("%q is no size of a frame: %d to %d bytes with the check sequence, or imix", s, MinSize, MaxSize)
	}
	return Size(n), nil
}

// String gives the size as ParseSize reads it.
func (s Size) String() string {
	if s == IMIX {
		return "imix"
	}
	return strconv.Itoa(int(s))
}

// MarshalJSON gives a number of bytes, or "imix".
func (s Size) MarshalJSON() ([]byte, error) {
	if s == IMIX {
		return json.Marshal(s.String())
	}
	return json.Marshal(int(s))
}

// UnmarshalJSON reads what MarshalJSON writes.
func (s *Size) UnmarshalJSON(b []byte) error {
	text := string(b)
	if len(text) > 1 && text[0] == '"' {
		text = text[1 : len(text)-1]
	}
	v, err := ParseSize(text)
	*s = v
	return err
}

// sizes are the sizes in bytes that it is made of, and turns which of them
// comes when.
func (s Size) parts() (sizes, turns []int) {
	if s == IMIX {
		return imixSizes, imixTurns
	}
	return []int{int(s)}, []int{0}
}

// Mean is the mean size in bytes.
func (s Size) Mean() float64 {
	sizes, turns := s.parts()
	sum := 0
	for _, t := range turns {
		sum += sizes[t]
	}
	return float64(sum) / float64(len(turns))
}

// Scenario is what packets and tables are like.
type Scenario struct {
	Size   Size
	Routes int // in each FIB, besides those that are needed
	Flows  int // that packets take turns in, a power of two
}

// Bounds of scenarios.
const (
	MaxRoutes = 500_000
	MaxFlows  = 1 << 15
)

// CheckFlows tells whether packets can be of so many flows.
func CheckFlows(n int) error {
	if n < 1 || n > MaxFlows || n&(n-1) != 0 {
		return fmt.Errorf("%d flows: a power of two from 1 to %d is possible", n, MaxFlows)
	}
	return nil
}

// of is the scenario with what a configuration's own name says in place of what
// is asked for.
func (s Scenario) of(c *configuration) Scenario {
	if c.routes > 0 {
		s.Routes = c.routes
	}
	if c.flows > 0 {
		s.Flows = c.flows
	}
	return s
}

// String says what a scenario is, for progress and errors.
func (s Scenario) String() string {
	text := s.Size.String()
	if s.Size != IMIX {
		text += " bytes"
	}
	if s.Routes > 0 {
		text += fmt.Sprintf(", %d routes", s.Routes)
	}
	if s.Flows > 1 {
		text += fmt.Sprintf(", %d flows", s.Flows)
	}
	return text
}

// routeBytes is what a route of a FIB costs at the most, in bytes: an ip_fib_alias
// (56), a leaf of the trie (48), and its part of the nodes above; 160 were measured
// with 500,000 of them.
const routeBytes = 200

// routerBytes is what a router costs at the most: namespaces, veth pairs.
const routerBytes = 2 << 20

// checkMemory refuses what would take more than half of the memory that is
// available.
func checkMemory(order []*configuration, sc Scenario) error {
	need := int64(0)
	for _, c := range order {
		routers := int64(max(1, c.routers, c.sides))
		need += routers * (routerBytes + int64(sc.of(c).Routes)*routeBytes)
	}
	have, err := bench.AvailableMemory()
	if err != nil {
		return err
	}
	return memoryFor(need, have)
}

func memoryFor(need, have int64) error {
	if need > have/2 {
		return errors.New(fmt.Sprintf("this takes up to %d MiB of memory, and %d MiB are available, of which half may be used: ", need>>20, have>>20) +
			"measure fewer --routes, --routers or --configs at a time")
	}
	return nil
}
