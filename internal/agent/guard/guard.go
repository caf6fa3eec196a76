// Package guard decides which nodes make the kernel do more for them than their
// share: which of them has its own devices set down, and is held for a while. It is
// pure; the agent's guard measures, and carries out.
//
// A node's root may make bridges, veth pairs and the like in the node's network
// namespace. A packet that circles between them takes a CPU whole, in softirqs,
// which no cgroup is charged with and no CPU limit bounds.
package guard

import "time"

// What counts as pressure, and as more than a share.
const (
	// saturated is the share of a CPU's time from which on it is looked who takes it.
	saturated = 0.5
	// freeCores is what the packets of a network's nodes may take of the CPUs then where
	// their limits are lower, or not set, in cores.
	freeCores = 0.25
	// amplified is how many packets there are on a node's own devices for each on the
	// platform's, in an offence: nothing came or went by those.
	amplified = 8
)

// Saturated reports whether softirqs take much of some CPU, by the share of each.
func Saturated(shares []float64) bool {
	for _, s := range shares {
		if s >= saturated {
			return true
		}
	}
	return false
}

// Use is what a node's packets took of the CPUs' time.
type Use struct {
	Cores float64 // on all devices of its network namespace
	Limit float64 // of the node's processes, in cores; 0: none
	// Packets on the devices that the node's root has made, and on the platform's.
	Own, Ports uint64
	// Samples of packets on devices that the node's root has made, or has given to one
	// of those as ports, and how often they were seen again.
	Samples, Repeats uint64
}

// Excessive reports whether what a network's nodes take together is more than their
// share. Packets that circle through several nodes take a part for each.
func Excessive(nodes ...Use) bool {
	var cores, limit float64
	for _, u := range nodes {
		cores += u.Cores
		limit += u.Limit
	}
	return cores > max(limit, freeCores)
}

// Circles reports whether packets go round and round there: they are seen again, or
// there are far more than have come. What only passes is the business of whoever sends.
func (u Use) Circles() bool {
	return u.Own > amplified*u.Ports || u.Repeats > u.Samples
}

// How long a node is held that offends again, and what it takes to be forgotten.
const (
	firstHold = 10 * time.Second
	longest   = 10 * time.Minute
	// Remembered is how long an offence counts.
	Remembered = 10 * time.Minute
)

// Ledger remembers nodes' offences. The key is the node's; the zero Ledger is ready.
type Ledger[K comparable] struct {
	offences map[K]offence
}

type offence struct {
	count int
	last  time.Time
}

// Add books an offence and says how long the node's processes are to be held: not at
// all at the first, which may well be a mistake, then twice as long each time.
func (l *Ledger[K]) Add(node K, now time.Time) (hold time.Duration) {
	if l.offences == nil {
		l.offences = map[K]offence{}
	}
	for k, o := range l.offences {
		if now.Sub(o.last) > Remembered {
			delete(l.offences, k)
		}
	}
	o := l.offences[node]
	o.count, o.last = o.count+1, now
	if o.count > 1 {
		hold = min(firstHold<<min(o.count-2, 16), longest)
	}
	o.last = now.Add(hold) // it cannot do better while it is held
	l.offences[node] = o
	return hold
}

// What of the kernel's memory makes a node offend.
const (
	// leastMemory is what a node may take of it whatever its limit, in bytes.
	leastMemory = 4 << 20
	// over is how much more than its limit a node may take, that included.
	over = 1.05
	// machinePart is the part of the machine's memory that a node without a limit may take.
	machinePart = 1.0 / 32
)

// KernelMemory is what a node takes of the machine's memory, in bytes.
type KernelMemory struct {
	Charged   int64 // to its cgroup
	Uncharged int64 // what the kernel holds for it besides
	Limit     int64 // 0: none
	Machine   int64 // what the machine has
}

// Leaves is what the kernel may hold for it, in bytes.
func (m KernelMemory) Leaves() int64 {
	if m.Limit <= 0 {
		return max(leastMemory, int64(machinePart*float64(m.Machine)))
	}
	return max(leastMemory, int64(over*float64(m.Limit))-m.Charged)
}

// Offends reports whether the kernel holds more for it than its limit leaves.
func (m KernelMemory) Offends() bool { return m.Uncharged > m.Leaves() }

// What of the neighbour tables, which all nodes share, makes a node offend.
const (
	crowdedPart = 1.0 / 2  // of a table, from which on it is looked who fills it
	crowderPart = 1.0 / 16 // of it, that a node may have then
)

// Neighbours are the entries of a neighbour table.
type Neighbours struct {
	Entries int // of all nodes
	Limit   int // of the table
}

// Crowded reports whether there is so little room that it matters who has it.
func (n Neighbours) Crowded() bool {
	return n.Limit > 0 && float64(n.Entries) > crowdedPart*float64(n.Limit)
}

// TakesTooMany reports whether a node that has so many of them leaves too few to the others.
func (n Neighbours) TakesTooMany(has int) bool {
	return n.Crowded() && float64(has) > crowderPart*float64(n.Limit)
}
