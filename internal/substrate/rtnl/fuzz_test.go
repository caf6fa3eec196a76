package rtnl

import (
	"bytes"
	"testing"

	"golang.org/x/sys/unix"
)

// FuzzMessages: whatever the kernel says of what a node's root has named and set up,
// every message lies within what was received, and is read without reading beyond it.
func FuzzMessages(f *testing.F) {
	var b Batch
	b.Begin(unix.RTM_NEWLINK, 0, LinkHeader(7, unix.IFF_UP, 0))
	b.String(unix.IFLA_IFNAME, "eth1")
	b.String(unix.IFLA_IFALIAS, "net/a")
	b.Bytes(unix.IFLA_ADDRESS, []byte{2, 0, 0, 0, 0, 1})
	b.Uint32(unix.IFLA_MTU, 1500)
	b.Nest(unix.IFLA_LINKINFO, func() {
		b.String(unix.IFLA_INFO_KIND, "veth")
		b.Nest(unix.IFLA_INFO_SLAVE_DATA, func() { b.Uint8(unix.IFLA_BRPORT_ISOLATED, 1) })
	})
	f.Add(bytes.Clone(b.Message(0)))
	b.Reset()
	b.Begin(unix.RTM_NEWNEIGH, 0, NeighbourHeader(unix.AF_INET, 7, 0))
	b.Bytes(unix.NDA_DST, []byte{192, 0, 2, 1})
	b.Bytes(unix.NDA_LLADDR, []byte{2, 0, 0, 0, 0, 1})
	f.Add(bytes.Clone(b.Message(0)))
	f.Add([]byte{16, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, p []byte) {
		read := 0
		// An error is an answer; what counts is what was handed over before it.
		_ = messages(p, func(m message) (bool, error) {
			read += unix.SizeofNlMsghdr + len(m.body)
			// Of its own, so that to read beyond it is to read beyond an allocation.
			body := append(make([]byte, 0, len(m.body)), m.body...)
			l := ParseLink(body)
			if n := len(l.Name) + len(l.Alias) + len(l.Qdisc) + len(l.Kind); n > len(body) {
				t.Errorf("%d bytes of names in %d", n, len(body))
			}
			if n, ok := ParseNeighbour(body); ok && !n.Addr.IsValid() {
				t.Errorf("a neighbour without an address: %+v", n)
			}
			_ = m.err()
			return false, nil
		})
		if read > len(p) {
			t.Errorf("read %d of %d bytes", read, len(p))
		}
	})
}
