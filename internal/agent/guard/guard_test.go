package guard

import (
	"testing"
	"time"
)

func TestOffends(t *testing.T) {
	for _, c := range []struct {
		what string
		use  Use
		want bool
	}{
		{"a loop of bridges", Use{Cores: 1.87, Limit: 0.1, Own: 90000, Ports: 10}, true},
		{"a loop over links, by a bridge of the node's", Use{Cores: 0.9, Own: 20000, Ports: 20000, Samples: 5, Repeats: 40}, true},
		{"a router under full load", Use{Cores: 1.5, Ports: 50000}, false},
		{"a router with a tunnel", Use{Cores: 1.5, Own: 50000, Ports: 50000, Samples: 12}, false},
		{"a bridge under full load", Use{Cores: 1.5, Own: 100, Ports: 50000, Samples: 12, Repeats: 1}, false},
		{"a loop that is shaped", Use{Cores: 0.1, Own: 900}, false},
		{"a loop within the node's limit", Use{Cores: 1.5, Limit: 2, Own: 90000}, false},
	} {
		if got := Excessive(c.use) && c.use.Circles(); got != c.want {
			t.Errorf("%s: offends %v, want %v", c.what, got, c.want)
		}
	}
}

func TestExcessive(t *testing.T) {
	part := Use{Cores: 0.2}
	if Excessive(part) || !Excessive(part, part) || Excessive() {
		t.Error("what circles through two nodes counts together")
	}
	if Excessive(Use{Cores: 0.9, Limit: 0.5}, Use{Cores: 0.9, Limit: 2}) {
		t.Error("the limits of a network's nodes count together")
	}
}

func TestSaturated(t *testing.T) {
	if Saturated([]float64{0.2, 0.4}) || Saturated(nil) || !Saturated([]float64{0.1, 0.97}) {
		t.Error("much of one CPU is pressure, and nothing less")
	}
}

func TestLedger(t *testing.T) {
	var l Ledger[string]
	now := time.Unix(0, 0)
	for i, want := range []time.Duration{0, 10 * time.Second, 20 * time.Second, 40 * time.Second} {
		now = now.Add(time.Minute)
		if got := l.Add("a", now); got != want {
			t.Errorf("offence %d: held for %s, want %s", i+1, got, want)
		}
	}
	if got := l.Add("b", now); got != 0 {
		t.Errorf("another node's first offence: held for %s", got)
	}
	for range 40 {
		if got := l.Add("a", now); got > longest {
			t.Fatalf("held for %s", got)
		}
	}
	if got := l.Add("a", now.Add(longest+Remembered+time.Second)); got != 0 {
		t.Errorf("an offence long ago counts: held for %s", got)
	}
	if n := len(l.offences); n != 1 {
		t.Errorf("%d nodes are remembered, want 1", n)
	}
}

func TestMemoryOffends(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct {
		what string
		m    KernelMemory
		want bool
	}{
		{"much is queued for a small node", KernelMemory{Charged: 10 * mib, Uncharged: 100 * mib, Limit: 64 * mib, Machine: 16384 * mib}, true},
		{"the same, for one of many MiB", KernelMemory{Charged: 10 * mib, Uncharged: 100 * mib, Limit: 256 * mib, Machine: 16384 * mib}, false},
		{"a node that is full", KernelMemory{Charged: 64 * mib, Uncharged: 5 * mib, Limit: 64 * mib, Machine: 16384 * mib}, true},
		{"a node that is full and has a few sockets", KernelMemory{Charged: 64 * mib, Uncharged: 3 * mib, Limit: 64 * mib, Machine: 16384 * mib}, false},
		{"a small node that has a few sockets", KernelMemory{Charged: 8 * mib, Uncharged: 3 * mib, Limit: 8 * mib, Machine: 16384 * mib}, false},
		{"a node without a limit", KernelMemory{Charged: 900 * mib, Uncharged: 500 * mib, Machine: 16384 * mib}, false},
		{"a node without a limit that takes much", KernelMemory{Uncharged: 600 * mib, Machine: 16384 * mib}, true},
	} {
		if got := c.m.Offends(); got != c.want {
			t.Errorf("%s: offends %v, want %v", c.what, got, c.want)
		}
	}
}

func TestNeighboursOffend(t *testing.T) {
	full, half := Neighbours{Entries: 120000, Limit: 131072}, Neighbours{Entries: 65000, Limit: 131072}
	if !full.TakesTooMany(8193) || full.TakesTooMany(8192) {
		t.Error("a sixteenth of a crowded table is what a node may have")
	}
	if half.Crowded() || half.TakesTooMany(60000) || (Neighbours{Entries: 5}).Crowded() {
		t.Error("while there is room, nobody takes too many")
	}
}
