package dataplane_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"net"
	"net/netip"
	"strings"
	"testing"

	"trellis/internal/substrate/nstest"
	"trellis/internal/tunnel"
	"trellis/internal/vnet"
)

// Two peers on an underlay, of both families.
var (
	ownMAC  = vnet.MAC{2, 0, 0, 0, 0xee, 1}
	peerMAC = vnet.MAC{2, 0, 0, 0, 0xee, 2}
	own4    = netip.MustParseAddr("192.0.2.1")
	peer4   = netip.MustParseAddr("192.0.2.2")
	own6    = netip.MustParseAddr("2001:db8::1")
	peer6   = netip.MustParseAddr("2001:db8::2")
)

const testKey = 0x01020304

// unhex reads bytes from hexadecimal text with spaces.
func unhex(t testing.TB, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(text), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// inner is an Ethernet frame of an EtherType that no stack knows.
func inner(length int) []byte {
	f := append([]byte{2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8, 0x88, 0xb5}, make([]byte, max(length, 14)-14)...)
	for i := 14; i < length; i++ {
		f[i] = byte(i * 7)
	}
	return f[:length]
}

// sum4 puts the right checksum into an IPv4 header.
func sum4(ip []byte) []byte {
	ip[10], ip[11] = 0, 0
	var sum uint32
	for i := 0; i < int(ip[0]&15)*4; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum))
	return ip
}

func be16(v int) []byte { return binary.BigEndian.AppendUint16(nil, uint16(v)) }

func join(parts ...[]byte) []byte {
	var all []byte
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

// gre is the GRE header of the wire format.
var gre = []byte{0x20, 0x00, 0x65, 0x58, 1, 2, 3, 4}

// egre4 is a packet of GRE on its way from one peer to the other.
func egre4(from, to vnet.MAC, src, dst netip.Addr, payload ...[]byte) []byte {
	gre := join(payload...)
	ip := join([]byte{0x45, 0}, be16(20+len(gre)), []byte{0, 0, 0x40, 0, 64, 47, 0, 0}, src.AsSlice(), dst.AsSlice())
	return join(to[:], from[:], []byte{8, 0}, sum4(ip), gre)
}

// egre6 is the same over IPv6.
func egre6(from, to vnet.MAC, src, dst netip.Addr, payload ...[]byte) []byte {
	gre := join(payload...)
	ip := join([]byte{0x60, 0, 0, 0}, be16(len(gre)), []byte{47, 64}, src.AsSlice(), dst.AsSlice())
	return join(to[:], from[:], []byte{0x86, 0xdd}, ip, gre)
}

func path4(uplink int) tunnel.Path {
	return tunnel.Path{
		Endpoints: tunnel.Endpoints{Local: own4, Remote: peer4},
		Key:       testKey,
		MTU:       1458,
		Route:     tunnel.Route{Uplink: uplink, Source: ownMAC, NextHop: peerMAC, MTU: 1500},
	}
}

func path6(uplink int) tunnel.Path {
	p := path4(uplink)
	p.Local, p.Remote, p.MTU = own6, peer6, 1438
	return p
}

// metadata is what the frames of the fast path carry before them (bpf/metadata.h),
// with the place of the node's block and the slot of the port that they arrive by.
func metadata(block, slot uint32) []byte {
	return join(le32(0x74726c66), le32(int(block)), le32(int(slot)), le32(0))
}

// metadataSize is that of struct metadata.
const metadataSize = 16

// unticketed gives a frame with metadata as if it had no ticket.
func unticketed(frame []byte) []byte {
	f := bytes.Clone(frame)
	if len(f) >= metadataSize {
		clear(f[12:metadataSize])
	}
	return f
}

// metadata gives those of frames that arrive by a port.
func (l *lab) metadata(port int) []byte { return metadata(l.Block(port), l.Slot(port)) }

func le32(v int) []byte { return binary.NativeEndian.AppendUint32(nil, uint32(v)) }

func addrs(texts ...string) (all []netip.Addr) {
	for _, text := range texts {
		all = append(all, netip.MustParseAddr(text))
	}
	return all
}

// index gives a device's interface index in the root context.
func index(t testing.TB, name string) int {
	t.Helper()
	i, err := net.InterfaceByName(name)
	if err != nil {
		t.Fatal(err)
	}
	return i.Index
}

// indexIn gives a device's interface index in a node.
func indexIn(t testing.TB, n *nstest.Node, name string) (i int) {
	t.Helper()
	if err := n.Do(func() error { i = index(t, name); return nil }); err != nil {
		t.Fatal(err)
	}
	return i
}
