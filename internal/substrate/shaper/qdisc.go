package shaper

import (
	"errors"
	"fmt"
	"math"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"trellis/internal/substrate/rtnl"
	"trellis/internal/vnet"
)

// What linux/pkt_sched.h says.
const (
	tcHandleRoot = 0xffffffff // TC_H_ROOT

	tcaTBFParms  = 1
	tcaTBFRate64 = 4
	tcaTBFBurst  = 6

	tcaNetemRate      = 6
	tcaNetemRate64    = 8
	tcaNetemLatency64 = 10
	tcaNetemJitter64  = 11

	tcaStatsBasic = 1
	tcaStatsQueue = 3

	linkLayerEthernet = 1 // TC_LINKLAYER_ETHERNET: no rate table needed

	// tick is a unit of packet scheduler time, PSCHED_SHIFT = 6.
	tick = 64 * time.Nanosecond
)

// tcMsg is struct tcmsg.
type tcMsg struct {
	Family  uint8
	_       [3]byte
	Index   int32
	Handle  uint32
	Parent  uint32
	Details uint32
}

// rateSpec is struct tc_ratespec.
type rateSpec struct {
	CellLog   uint8
	LinkLayer uint8
	Overhead  uint16
	CellAlign int16
	MPU       uint16
	Rate      uint32 // bytes/s; all ones: see the 64-bit attribute
}

// tbfQopt is struct tc_tbf_qopt.
type tbfQopt struct {
	Rate, PeakRate rateSpec
	Limit          uint32 // bytes
	Buffer         uint32 // ticks
	MTU            uint32
}

// netemQopt is struct tc_netem_qopt.
type netemQopt struct {
	Latency   uint32 // ticks
	Limit     uint32 // packets
	Loss      uint32 // probability
	Gap       uint32
	Duplicate uint32
	Jitter    uint32 // ticks
}

// netemRate is struct tc_netem_rate.
type netemRate struct {
	Rate           uint32 // bytes/s
	PacketOverhead int32
	CellSize       uint32
	CellOverhead   int32
}

const (
	frame = 1514 // an Ethernet frame of MTU 1500, without FCS

	// burstTime is how far a rate may be exceeded at once: long enough that
	// the timer's lateness costs no throughput, and short against any
	// protocol's. Never less than two of the largest frames of common MTUs, or
	// than one of the device's: a longer frame than the burst TBF drops.
	burstTime = 2 * time.Millisecond
	minBurst  = 2 * 9234

	// queueTime is what a shaped direction's queue holds before it drops from
	// the tail: the buffer of a router's line card.
	queueTime = 100 * time.Millisecond
	minQueue  = 32 * frame

	overMTU = 14 + 4 // a frame's header and one VLAN tag

	// fastest stands in for the rate of an unlimited link, when its queue is
	// sized: what one core of a machine moves.
	fastest = 10_000_000_000 / 8
)

// request appends the message that gives the device at index, of an MTU, the
// shape.
func request(b *rtnl.Batch, index, mtu int, s vnet.Shape) {
	h := tcMsg{Index: int32(index), Parent: tcHandleRoot}
	switch {
	case s.IsZero():
		b.Begin(unix.RTM_DELQDISC, 0, rtnl.Header(&h))
	case s.NeedsNetem():
		b.Begin(unix.RTM_NEWQDISC, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, rtnl.Header(&h))
		b.String(unix.TCA_KIND, "netem")
		netem(b, s)
	default:
		b.Begin(unix.RTM_NEWQDISC, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, rtnl.Header(&h))
		b.String(unix.TCA_KIND, "tbf")
		tbf(b, mtu, s)
	}
}

// clamp32 is v, or all ones if it does not fit: the kernel's sign that a 64-bit
// attribute has the value.
func clamp32(v uint64) uint32 { return uint32(min(v, math.MaxUint32)) }

// during gives the bytes that pass at a rate in a time.
func during(rate uint64, t time.Duration) uint64 {
	return uint64(float64(rate) * t.Seconds())
}

// Bounds gives the bytes that a device of an MTU sends at once, and those that it holds,
// where it has a rate alone, in bit/s.
func Bounds(rate uint64, mtu int) (burst, queue uint64) {
	rate /= 8
	longest := uint64(max(mtu, 0) + overMTU)
	burst = min(max(during(rate, burstTime), minBurst, longest), math.MaxInt32)
	queue = min(max(during(rate, queueTime), minQueue, 2*longest), math.MaxInt32)
	return burst, queue
}

func tbf(b *rtnl.Batch, mtu int, s vnet.Shape) {
	rate := s.Rate / 8
	burst, limit := Bounds(s.Rate, mtu)
	q := tbfQopt{Rate: rateSpec{LinkLayer: linkLayerEthernet, Rate: clamp32(rate)}, Limit: uint32(limit)}
	b.Nest(unix.TCA_OPTIONS, func() {
		b.Bytes(tcaTBFParms, rtnl.Header(&q))
		if rate >= math.MaxUint32 {
			b.Uint64(tcaTBFRate64, rate)
		}
		b.Uint32(tcaTBFBurst, uint32(burst))
	})
}

func netem(b *rtnl.Batch, s vnet.Shape) {
	rate := s.Rate / 8
	through := rate
	if through == 0 {
		through = fastest
	}
	// netem holds all that is on the wire, so its limit must be the bandwidth
	// times the delay, and the queue on top, in frames, which may be short.
	held := during(through, s.Delay+s.Jitter+queueTime)
	limit := min(max(held/(frame/4), 1000), 1<<20)
	q := netemQopt{
		Latency: clamp32(uint64(s.Delay / tick)), Jitter: clamp32(uint64(s.Jitter / tick)),
		Loss: toProbability(s.Loss), Limit: uint32(limit),
	}
	h := rtnl.Header(&q)
	start := b.Open(unix.TCA_OPTIONS)
	b.Raw(h) // netem's options begin with the struct itself
	if rate != 0 {
		r := netemRate{Rate: clamp32(rate)}
		if rate >= math.MaxUint32 {
			b.Uint64(tcaNetemRate64, rate)
		}
		b.Bytes(tcaNetemRate, rtnl.Header(&r))
	}
	b.Uint64(tcaNetemLatency64, uint64(s.Delay))
	b.Uint64(tcaNetemJitter64, uint64(s.Jitter))
	b.Close(start)
}

func toProbability(p float64) uint32 { return uint32(math.Round(p * math.MaxUint32)) }

func fromProbability(v uint32) float64 { return float64(v) / math.MaxUint32 }

// Queue is the root qdisc of a device, as the kernel has it.
type Queue struct {
	Shape   vnet.Shape
	Packets uint64 // sent
	Bytes   uint64 // sent
	Drops   uint64 // packets, by the queue's limit or the loss asked for
	Backlog uint32 // bytes that wait
}

// Read gives the shaped devices of the network namespace, by interface index.
// Devices with a root qdisc that is not ours are left out.
func Read() (map[int]Queue, error) {
	c, err := rtnl.Dial()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	var queues map[int]Queue
	h := tcMsg{}
	err = c.Dump(unix.RTM_GETQDISC, rtnl.Header(&h), nil,
		func() { queues = map[int]Queue{} },
		func(body []byte) error {
			if index, q, ok := Parse(body); ok && !q.Shape.IsZero() {
				queues[index] = q
			}
			return nil
		})
	if err != nil {
		return nil, fmt.Errorf("read the shapes of all devices: %w", err)
	}
	return queues, nil
}

// Parse reads the body of a message about a qdisc, an answer or a notification;
// false if it is not the root of its device. One that is not ours has the zero
// shape.
func Parse(body []byte) (index int, q Queue, ok bool) {
	if len(body) < int(unsafe.Sizeof(tcMsg{})) {
		return 0, q, false
	}
	h := (*tcMsg)(unsafe.Pointer(&body[0]))
	if h.Parent != tcHandleRoot {
		return 0, q, false
	}
	q, _ = parse(body[unsafe.Sizeof(*h):])
	return int(h.Index), q, true
}

// ReadOf gives the root qdiscs of devices, by interface index; those that have
// gone, or have none of ours, are left out.
func ReadOf(indexes ...int) (map[int]Queue, error) {
	queues := make(map[int]Queue, len(indexes))
	if len(indexes) == 0 {
		return queues, nil
	}
	c, err := rtnl.Dial()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	for _, i := range indexes {
		var b rtnl.Batch
		h := tcMsg{Index: int32(i), Parent: tcHandleRoot}
		// Without ECHO the kernel answers the group of listeners alone
		// (qdisc_notify, net/sched/sch_api.c).
		b.Begin(unix.RTM_GETQDISC, unix.NLM_F_ECHO, rtnl.Header(&h))
		body, err := c.Get(&b)
		if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) { // EINVAL: a built-in one
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read the shape of a device: %w", err)
		}
		if index, q, ok := Parse(body); ok && !q.Shape.IsZero() {
			queues[index] = q
		}
	}
	return queues, nil
}

// parse reads the attributes of a qdisc.
func parse(attrs []byte) (q Queue, ok bool) {
	var kind string
	var options []byte
	for typ, v := range rtnl.Attrs(attrs) {
		switch typ {
		case unix.TCA_KIND:
			kind = rtnl.Text(v)
		case unix.TCA_OPTIONS:
			options = v
		case unix.TCA_STATS2:
			q.stats(v)
		}
	}
	switch kind {
	case "tbf":
		q.Shape, ok = parseTBF(options)
	case "netem":
		q.Shape, ok = parseNetem(options)
	}
	return q, ok
}

// stats reads struct gnet_stats_basic and gnet_stats_queue.
func (q *Queue) stats(v []byte) {
	for typ, v := range rtnl.Attrs(v) {
		switch {
		case typ == tcaStatsBasic && len(v) >= 12:
			q.Bytes, q.Packets = rtnl.Uint64(v), uint64(rtnl.Uint32(v[8:]))
		case typ == tcaStatsQueue && len(v) >= 12:
			q.Backlog, q.Drops = rtnl.Uint32(v[4:]), uint64(rtnl.Uint32(v[8:]))
		}
	}
}

func parseTBF(options []byte) (s vnet.Shape, ok bool) {
	for typ, v := range rtnl.Attrs(options) {
		switch {
		case typ == tcaTBFParms && len(v) >= int(unsafe.Sizeof(tbfQopt{})):
			rate := rtnl.Uint32(v[unsafe.Offsetof(rateSpec{}.Rate):])
			if s.Rate == 0 { // the 64-bit attribute may have come first
				s.Rate = uint64(rate) * 8
			}
			ok = true
		case typ == tcaTBFRate64:
			s.Rate = rtnl.Uint64(v) * 8
		}
	}
	return s, ok
}

func parseNetem(options []byte) (s vnet.Shape, ok bool) {
	const size = int(unsafe.Sizeof(netemQopt{}))
	if len(options) < size {
		return s, false
	}
	at := func(offset uintptr) uint32 { return rtnl.Uint32(options[offset:]) }
	s.Delay = time.Duration(at(unsafe.Offsetof(netemQopt{}.Latency))) * tick
	s.Jitter = time.Duration(at(unsafe.Offsetof(netemQopt{}.Jitter))) * tick
	s.Loss = fromProbability(at(unsafe.Offsetof(netemQopt{}.Loss)))
	var rate64 uint64
	for typ, v := range rtnl.Attrs(options[size:]) {
		switch typ {
		case tcaNetemRate:
			s.Rate = uint64(rtnl.Uint32(v)) * 8
		case tcaNetemRate64:
			rate64 = rtnl.Uint64(v)
		case tcaNetemLatency64:
			s.Delay = time.Duration(rtnl.Uint64(v))
		case tcaNetemJitter64:
			s.Jitter = time.Duration(rtnl.Uint64(v))
		}
	}
	if rate64 != 0 {
		s.Rate = rate64 * 8
	}
	return s, true
}
