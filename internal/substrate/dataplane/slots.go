package dataplane

import "fmt"

// maxPorts is MAX_PORTS of bpf/maps.h.
const maxPorts = 32768

// slots gives out places in the map of counters. Slot 0 is never given out: it
// counts what no device can be charged with. The zero value has all free.
type slots struct {
	used [maxPorts]bool
	last uint32 // given out
}

// take marks a slot as used that a device has already.
func (s *slots) take(slot uint32) { s.used[slot%maxPorts] = true }

// get gives out a free slot.
func (s *slots) get() (uint32, error) {
	for range maxPorts - 1 {
		s.last = s.last%(maxPorts-1) + 1
		if !s.used[s.last] {
			s.used[s.last] = true
			return s.last, nil
		}
	}
	return 0, fmt.Errorf("all %d places for devices are taken; take networks down, or run a second instance", maxPorts-1)
}

// put takes a slot back.
func (s *slots) put(slot uint32) { s.used[slot%maxPorts] = false }
