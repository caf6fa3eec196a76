// Package interop tries EGRE against those who speak it too: Open vSwitch's
// userspace datapath, Linux's gretap and ip6gretap, and Trellis itself. Every
// frame that any of them puts on the underlay is read back and checked, outer
// and inner headers, lengths and checksums.
//
// All of it runs in namespaces and directories of the test's own: two root
// contexts, Trellis's and the peer's, with a wire between them.
//
//	node ─ Trellis ─ up0 ═══ wire ═══ up0 ─ peer ─ guest
//	                     taps of the test
//
// Where a peer is not there (Open vSwitch is not installed, the kernel has no
// gretap), its part is skipped, and says why. test/qemu runs this package under
// Debian's kernels, which have gretap.
package interop

import (
	"testing"

	"trellis/internal/substrate/nstest"
)

// side is one speaker of EGRE.
type side interface {
	// link makes the interface of a node, up, and by the key the far end of a
	// link of the other side's.
	link(t testing.TB, n *nstest.Node, name string, key uint32, mtu int)
}

// peers are the far sides that Trellis is tried with.
var peers = []struct {
	name string
	need func(testing.TB)
	make func(testing.TB, *host, *host, underlay) side
}{
	{"Trellis", func(testing.TB) {}, func(t testing.TB, own, other *host, u underlay) side { return newTrellis(t, own, other, u) }},
	{"Open vSwitch", needOVS, func(t testing.TB, own, other *host, u underlay) side { return newOVS(t, own, other, u) }},
	{"gretap", needGretap, func(t testing.TB, own, other *host, u underlay) side { return newGretap(t, own, other, u) }},
}

// matrix runs a test with every peer over both families of the underlay.
func matrix(t *testing.T, mtu int, test func(t *testing.T, l *lab)) {
	for _, p := range peers {
		t.Run(p.name, func(t *testing.T) {
			p.need(t)
			for name, ipv6 := range map[string]bool{"over IPv4": false, "over IPv6": true} {
				t.Run(name, func(t *testing.T) {
					u := underlay{ipv6: ipv6, mtu: mtu}
					l := newLab(t, u)
					l.there = p.make(t, l.far, l.own, u)
					_, twin := l.there.(*trellis)
					l.wire.trust(true, twin)
					test(t, l)
				})
			}
		})
	}
}
