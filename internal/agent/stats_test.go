package agent

import (
	"reflect"
	"testing"

	"trellis/internal/agentapi"
	"trellis/internal/plan"
	"trellis/internal/substrate/dataplane"
	"trellis/internal/substrate/port"
	"trellis/internal/substrate/shaper"
)

// What the pair that shapes a port drops is the port's loss, and what passes it
// is counted once.
func TestPortCountersIncludeTheShapingPair(t *testing.T) {
	devices := map[string]int{"trport1": 1, "tsport1": 2, "tmport1": 3, "trother": 4}
	counters := map[int]dataplane.PortCounters{
		1: {
			FromNodePackets: 10, FromNodeBytes: 100, ToNodePackets: 20, ToNodeBytes: 200,
			FastFromNodePackets: 3, FastFromNodeBytes: 30, FastToNodePackets: 4, FastToNodeBytes: 40,
			Drops: map[dataplane.DropReason]uint64{dataplane.DropRunt: 1},
			Stack: map[dataplane.StackReason]uint64{dataplane.StackTTL: 6},
		},
		2: {FromNodePackets: 9, Drops: map[dataplane.DropReason]uint64{dataplane.DropRunt: 2}},
		3: {ToNodePackets: 9, Drops: map[dataplane.DropReason]uint64{dataplane.DropLong: 5}},
		4: {Drops: map[dataplane.DropReason]uint64{dataplane.DropLong: 100}},
	}
	queues := map[int]shaper.Queue{1: {Drops: 7}, 2: {Drops: 8}}
	got := portCounters("trport1", devices, counters, queues)
	want := agentapi.PortStats{
		Device: "trport1", RxPackets: 20, RxBytes: 200, TxPackets: 10, TxBytes: 100,
		RxFastPackets: 4, RxFastBytes: 40, TxFastPackets: 3, TxFastBytes: 30,
		Drops: 23, DropsBy: map[string]uint64{"runt": 3, "too-long": 5, "queue": 15},
		StackBy: map[string]uint64{"ttl": 6},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	if got := portCounters("trother", devices, counters, queues); got.Drops != 100 || len(got.DropsBy) != 1 {
		t.Errorf("a port without a pair: %+v", got)
	}
}

// What is dropped between a LAN's bridge and its tunnel is the tunnel's loss.
func TestPortCountersIncludeBothEndsOfATunnel(t *testing.T) {
	const device = "ttlan1"
	devices := map[string]int{device: 1, port.TunnelMember(device): 2}
	counters := map[int]dataplane.PortCounters{
		1: {FromNodePackets: 10, ToNodePackets: 20, Drops: map[dataplane.DropReason]uint64{dataplane.DropLong: 3}},
		2: {FromNodePackets: 20, ToNodePackets: 11, Drops: map[dataplane.DropReason]uint64{dataplane.DropLong: 4, dataplane.DropRunt: 5}},
	}
	got := portCounters(device, devices, counters, nil)
	if got.RxPackets != 20 || got.TxPackets != 10 || got.Drops != 12 || got.DropsBy["too-long"] != 7 || got.DropsBy["runt"] != 5 {
		t.Errorf("got %+v", got)
	}
}

func TestFastEnds(t *testing.T) {
	n := &plan.Node{Ports: []plan.Port{{Device: "a"}, {Device: "b"}}}
	for _, c := range []struct {
		at        map[string]dataplane.Attachment
		on, takes bool
	}{
		{nil, false, false},
		{map[string]dataplane.Attachment{"b": {TakesXDP: true}, "c": {TakesXDP: true, Fast: true}}, false, true},
		{map[string]dataplane.Attachment{"a": {}, "b": {TakesXDP: true, Fast: true}}, true, true},
	} {
		if on, takes := fastEnds(n, c.at); on != c.on || takes != c.takes {
			t.Errorf("%v: on %v, takes %v", c.at, on, takes)
		}
	}
}
