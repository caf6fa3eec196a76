package dataplane

import (
	"math"
	"testing"
	"time"

	"trellis/test/testenv"
)

// TestClocksAreAccurate holds what a class's clock counts for frames, as the programs compute it
// (cost_of of bpf/rate.h), against what they take.
func TestClocksAreAccurate(t *testing.T) {
	testenv.Measures(t)
	for rate := uint64(slowestRate); rate <= 1e12; rate = rate*3 + 8 {
		c := Rate{Bits: rate, Burst: 20_000, Queue: rate / 80, MTU: 1500}.class()
		for _, bytes := range []uint64{64, 1514, 1 << 19} {
			if high := uint64(math.MaxUint64) / c.Cost; high < bytes {
				t.Fatalf("at %d bit/s, the time of %d bytes overflows", rate, bytes)
			}
			got := float64(bytes*c.Cost>>costFraction) / (1 << clockFraction)
			want := float64(bytes) * 8e9 / float64(rate)
			// A 64th of a ns is cut off.
			if diff := math.Abs(got - want); diff > want*0.001+0.016 || rate <= 1e10 && diff > want*0.005 {
				t.Errorf("at %d bit/s, %d bytes take %.3f ns; want %.3f", rate, bytes, got, want)
			}
		}
		burst := 8 * 20_000 * time.Second / time.Duration(rate)
		if got := time.Duration(c.Tolerance >> clockFraction); got > burst+time.Nanosecond || got < min(tolerance, burst)-time.Nanosecond {
			t.Errorf("at %d bit/s, the tolerance is %v, the burst %v", rate, got, burst)
		}
	}
	for _, rate := range []uint64{0, 8, slowestRate - 1} {
		if c := (Rate{Bits: rate, Burst: 20_000, Queue: 50_000, MTU: 1500}).class(); c.Cost != 0 || c.Bits != rate {
			t.Errorf("%d bit/s is counted: %+v", rate, c)
		}
	}
}
