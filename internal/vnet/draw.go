package vnet

import (
	"crypto/sha256"
	"encoding/binary"
	"strconv"
)

// draw gives the attempt-th number that belongs to an object. It depends on
// nothing but the object's kind and names, so an object keeps what it drew while
// others come and go; only where two objects draw the same number does the one
// later in the description take its next attempt.
func draw(attempt int, kind string, names ...string) uint64 {
	h := sha256.New()
	h.Write([]byte(kind))
	for _, n := range names {
		h.Write([]byte{0}) // names hold no NUL, so the list is unambiguous
		h.Write([]byte(n))
	}
	if attempt > 0 {
		h.Write([]byte{0, 0})
		h.Write([]byte(strconv.Itoa(attempt)))
	}
	return binary.BigEndian.Uint64(h.Sum(nil))
}

// How long drawing goes on: first by independent attempts, which find a free
// slot fast while a pool has any room to speak of, then slot by slot.
const (
	drawAttempts = 64
	drawScan     = 4096
)

// drawSlot finds a free slot in [0, size) for an object; ok is false where
// there is none (or where a pool of more than drawScan slots is so full that
// none was found).
func drawSlot(size uint64, free func(slot uint64) bool, kind string, names ...string) (slot uint64, ok bool) {
	if size == 0 {
		return 0, false
	}
	for attempt := range drawAttempts {
		slot = draw(attempt, kind, names...) % size
		if free(slot) {
			return slot, true
		}
	}
	for range min(size, drawScan) {
		slot = (slot + 1) % size
		if free(slot) {
			return slot, true
		}
	}
	return 0, false
}
