package dataplane

import (
	"fmt"
	"math"
	"math/bits"
	"time"

	"golang.org/x/sys/unix"
)

// What bpf/rate.h says.
const (
	clockFraction = 6  // CLOCK_FRACTION: bits of a ns
	costFraction  = 14 // COST_FRACTION
)

// Rate is what a shaped direction may carry, and how the qdisc that holds it to that is
// set up. With it, what conforms takes the fast path, and the qdisc the rest (bpf/rate.h).
type Rate struct {
	Bits  uint64 // bit/s, of Ethernet frames without FCS; 0: not known here, and everything goes by the qdisc
	Burst uint64 // bytes that the qdisc sends at once
	Queue uint64 // bytes that it holds
	MTU   int    // of the link: the length of its IP packets
}

// Of a class on the fast path.
const (
	// slowestRate is the lowest rate in bit/s that a class's clock can count.
	slowestRate = 1000
	// tolerance is how far a class may be ahead of its rate: as long as the qdisc's burst,
	// for the same reasons, and at least two of its longest frames.
	tolerance = 2 * time.Millisecond
	// rehold is added to what a queue takes longer to drain at another rate.
	rehold = 10 * time.Millisecond
)

// clockOf gives a time as clocks of classes count.
func clockOf(t time.Duration) uint64 { return uint64(t) << clockFraction }

// takes gives the time that bytes take at a rate in bit/s, as clocks count, rounded down; no
// more than a year.
func takes(bytes, rate uint64, fraction uint) uint64 {
	high, low := bits.Mul64(bytes*8, uint64(time.Second)<<(clockFraction+fraction))
	if high >= rate {
		return math.MaxUint64
	}
	t, _ := bits.Div64(high, low, rate)
	return t
}

// class gives the entry of the rate as the programs read it; with no cost, everything goes
// by the qdisc.
func (r Rate) class() portProgsRate {
	c := portProgsRate{Bits: r.Bits}
	if r.Bits < slowestRate {
		return c
	}
	rate := r.Bits / 8 * 8 // as the kernel has it
	frames := takes(uint64(2*(r.MTU+ethSize+tagSize)), rate, 0)
	c.Cost = takes(1, rate, costFraction)
	// No more than the qdisc's bucket, which the reasoning of bpf/rate.h leans on.
	c.Tolerance = min(max(clockOf(tolerance), frames), takes(r.Burst, rate, 0))
	c.Depth = takes(r.Queue, rate, 0)
	return c
}

// SetRate changes the rate of what a port sends to the shaped end that it is joined with. What
// waits there goes first: nothing is reordered. The qdisc is its owner's to change.
func (d *Dataplane) SetRate(from int, r Rate) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	p, ok := d.ports.get(uint32(from))
	if !ok {
		return fmt.Errorf("set the rate of port %d: it has no programs; attach it first", from)
	}
	if Mode(p.Mode) != Shaped {
		r = Rate{} // nothing is between it and its end
	}
	if err := d.setRate(p, r); err != nil {
		return fmt.Errorf("set the rate of port %d: %w", from, err)
	}
	return nil
}

// setRate has what a port sends conform to a rate.
func (d *Dataplane) setRate(p portProgsPort, r Rate) error {
	have, want := d.classOf(p), r.class()
	want.Hold, want.Flags = have.Hold, have.Flags
	if have == want {
		return nil
	}
	var err error
	if want.Hold, err = d.hold(p.Slot, have, want); err != nil {
		return err
	}
	if err := d.rates.put(p.Slot, want); err != nil {
		return err
	}
	return d.syncEgress(p.Index)
}

// syncRate has the programs know where a class's two ways meet.
func (d *Dataplane) syncRate(p portProgsPort) error {
	c := d.classOf(p)
	if c.Cost == 0 {
		return nil
	}
	c.Flags = 0
	if d.pathOf[p.Index] != 0 {
		c.Flags = portProgsRateFlagRATE_PATH
	}
	return d.rates.put(p.Slot, c)
}

// classOf gives the entry of what a port sends; the zero value: there is none.
func (d *Dataplane) classOf(p portProgsPort) portProgsRate {
	c, _ := d.rates.get(p.Slot)
	return c
}

// hold gives until when a class must stay shaped whose queue, filled at one rate, drains at
// another: its clock has counted on the old one.
func (d *Dataplane) hold(slot uint32, old, next portProgsRate) (until uint64, err error) {
	if old.Bits == 0 || next.Bits == 0 || next.Bits == old.Bits {
		return old.Hold, nil
	}
	var c portProgsClass
	if err := d.maps["classes"].Lookup(slot, &c); err != nil {
		return 0, fmt.Errorf("read the class in slot %d: %w", slot, err)
	}
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0, fmt.Errorf("read the clock: %w", err)
	}
	now := clockOf(time.Duration(ts.Nano()))
	if c.Clock <= now && old.Hold <= now {
		return old.Hold, nil
	}
	waits := max(c.Clock, old.Hold, now) - now
	high, low := bits.Mul64(waits, old.Bits)
	if high >= next.Bits {
		return math.MaxUint64, nil
	}
	longer, _ := bits.Div64(high, low, next.Bits)
	return now + longer + clockOf(rehold), nil
}

// rateOf gives the rate in bit/s that what a port sends conforms to; 0: there is none, or it is
// not known here.
func (d *Dataplane) rateOf(p portProgsPort) uint64 {
	if Mode(p.Mode) != Shaped {
		return 0
	}
	return d.classOf(p).Bits
}
