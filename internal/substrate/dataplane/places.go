package dataplane

import "fmt"

// maxPorts is MAX_PORTS of bpf/maps.h, maxEnds MAX_ENDS of bpf/ends.h.
const (
	maxPorts = 32768
	maxEnds  = maxPorts + 1024
)

// places gives out the places of a map, in turns, so that one that has been
// given back is left alone for a while. Place 0 is never given out.
type places struct {
	used []bool
	last uint32 // given out
}

func newPlaces(n int) places { return places{used: make([]bool, n)} }

// take marks a place as used that something has already.
func (p *places) take(place uint32) {
	if place < uint32(len(p.used)) {
		p.used[place] = true
	}
}

// get gives out a free place.
func (p *places) get() (uint32, error) {
	n := uint32(len(p.used)) - 1
	for range n {
		p.last = p.last%n + 1
		if !p.used[p.last] {
			p.used[p.last] = true
			return p.last, nil
		}
	}
	return 0, fmt.Errorf("all %d places for devices are taken; take networks down, or run a second instance", n)
}

// put takes a place back.
func (p *places) put(place uint32) {
	if place < uint32(len(p.used)) {
		p.used[place] = false
	}
}
