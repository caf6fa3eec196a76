package tunnel

import "fmt"

// Reason is why a frame was dropped.
type Reason uint8

// Reasons, as in bpf/tunnel.h, which tells them in full.
const (
	Unknown    = Reason(stackProgsTunnelDropTUNNEL_UNKNOWN)
	Version    = Reason(stackProgsTunnelDropTUNNEL_VERSION)
	Keyless    = Reason(stackProgsTunnelDropTUNNEL_KEYLESS)
	Flags      = Reason(stackProgsTunnelDropTUNNEL_FLAGS)
	Protocol   = Reason(stackProgsTunnelDropTUNNEL_PROTOCOL)
	Fragment   = Reason(stackProgsTunnelDropTUNNEL_FRAGMENT)
	Options    = Reason(stackProgsTunnelDropTUNNEL_OPTIONS)
	Checksum   = Reason(stackProgsTunnelDropTUNNEL_CHECKSUM)
	Length     = Reason(stackProgsTunnelDropTUNNEL_LENGTH)
	Runt       = Reason(stackProgsTunnelDropTUNNEL_RUNT)
	Long       = Reason(stackProgsTunnelDropTUNNEL_LONG)
	Unjoined   = Reason(stackProgsTunnelDropTUNNEL_UNJOINED)
	FromRoot   = Reason(stackProgsTunnelDropTUNNEL_ROOT)
	Tags       = Reason(stackProgsTunnelDropTUNNEL_TAGS)
	Nested     = Reason(stackProgsTunnelDropTUNNEL_NESTED)
	Uneditable = Reason(stackProgsTunnelDropTUNNEL_EDIT)
	numReason  = Reason(stackProgsTunnelDropTUNNEL_DROPS)
)

var reasonNames = [numReason]string{
	"unknown-peer", "gre-version", "gre-keyless", "gre-flags", "gre-protocol", "outer-fragment", "outer-options",
	"outer-checksum", "outer-length", "runt", "too-long", "unjoined", "from-root", "too-many-tags", "nested-offload", "uneditable",
}

func (r Reason) String() string {
	if r < numReason {
		return reasonNames[r]
	}
	return fmt.Sprintf("reason %d", uint8(r))
}

// Counters is what has passed a port, since it was attached. A super-packet
// counts as its segments, its headers once.
type Counters struct {
	InPackets, InBytes       uint64 // to the node
	StackPackets, StackBytes uint64 // from the node's stack
	FastPackets, FastBytes   uint64 // from the node's fast path
	Drops                    map[Reason]uint64
}

// Counters reads a port's counters.
func (t *Tunnel) Counters(index int) (Counters, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p, err := t.port(index)
	if err != nil {
		return Counters{}, err
	}
	return t.read(p.slot)
}

// UplinkDrops reads what the uplinks have dropped that no port can be charged
// with.
func (t *Tunnel) UplinkDrops() (map[Reason]uint64, error) {
	c, err := t.read(0)
	return c.Drops, err
}

func (t *Tunnel) read(slot uint32) (Counters, error) {
	var each []stackProgsTunnelTraffic
	if err := t.stack.TunnelCounters.Lookup(slot, &each); err != nil {
		return Counters{}, fmt.Errorf("read the counters of tunnels: %w", err)
	}
	c := Counters{Drops: map[Reason]uint64{}}
	for _, e := range each {
		c.InPackets += e.InPackets
		c.InBytes += e.InBytes
		c.StackPackets += e.StackPackets
		c.StackBytes += e.StackBytes
		c.FastPackets += e.FastPackets
		c.FastBytes += e.FastBytes
		for r, n := range e.Drops {
			if n > 0 {
				c.Drops[Reason(r)] += n
			}
		}
	}
	return c, nil
}
