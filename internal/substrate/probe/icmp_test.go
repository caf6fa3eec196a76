package probe

import (
	"encoding/binary"
	"net/netip"
	"testing"
)

// ip4 puts an IPv4 header with options words in front of an ICMP message.
func ip4(from netip.Addr, options int, payload []byte) []byte {
	h := make([]byte, ip4Header+4*options)
	h[0], h[9] = byte(0x40|(5+options)), 1
	copy(h[12:], from.AsSlice())
	return append(h, payload...)
}

func echoOfType(typ byte, id, seq uint16, nonce uint64) []byte {
	var b [echoLen]byte
	echoRequest(b[:], IPv4, id, seq, nonce)
	b[0] = typ
	return b[:]
}

var from = netip.MustParseAddr("10.0.0.7")

func TestEchoRequestHasAValidChecksum(t *testing.T) {
	var b [echoLen]byte
	echoRequest(b[:], IPv4, 0xbeef, 0x1234, 0xfedcba9876543210)
	// RFC 1071: over a message with its checksum the sum is all ones.
	if got := checksum(b[:]); got != 0 {
		t.Errorf("checksum over the message leaves %#x: % x", got, b)
	}
	if b[0] != 8 || b[1] != 0 {
		t.Errorf("type and code % x", b[:2])
	}
}

func TestParseTellsReplyFromError(t *testing.T) {
	const id, nonce = 77, 99
	quote4 := ip4(netip.MustParseAddr("10.0.0.1"), 0, echoOfType(icmp4Echo, id, 5, nonce)[:8]) // RFC 792: 64 bits
	quote6 := append(make([]byte, ip6Header), echoOfType(icmp6Echo, id, 6, nonce)...)
	quote6[6] = 58
	for name, c := range map[string]struct {
		family string
		packet []byte
		want   answer
	}{
		"reply":              {IPv4, ip4(from, 0, echoOfType(icmp4EchoReply, id, 3, nonce)), answer{seq: 3, from: from}},
		"reply with options": {IPv4, ip4(from, 3, echoOfType(icmp4EchoReply, id, 4, nonce)), answer{seq: 4, from: from}},
		"unreachable":        {IPv4, ip4(from, 0, append([]byte{3, 1, 0, 0, 0, 0, 0, 0}, quote4...)), answer{seq: 5, from: from, problem: "host unreachable"}},
		"time exceeded":      {IPv4, ip4(from, 0, append([]byte{11, 0, 0, 0, 0, 0, 0, 0}, quote4...)), answer{seq: 5, from: from, problem: "time to live exceeded"}},
		"reply 6":            {IPv6, echoOfType(icmp6EchoReply, id, 7, nonce), answer{seq: 7}},
		"unreachable 6":      {IPv6, append([]byte{1, 0, 0, 0, 0, 0, 0, 0}, quote6...), answer{seq: 6, problem: "no route to destination"}},
		"hop limit 6":        {IPv6, append([]byte{3, 0, 0, 0, 0, 0, 0, 0}, quote6...), answer{seq: 6, problem: "hop limit exceeded"}},
	} {
		if got, ok := parse(c.packet, c.family, id, nonce); !ok || got != c.want {
			t.Errorf("%s: got %+v, %t, want %+v", name, got, ok, c.want)
		}
	}
}

func TestParseLeavesOthersAlone(t *testing.T) {
	const id, nonce = 77, 99
	for name, c := range map[string]struct {
		family string
		packet []byte
	}{
		"other id":      {IPv4, ip4(from, 0, echoOfType(icmp4EchoReply, id+1, 3, nonce))},
		"other nonce":   {IPv4, ip4(from, 0, echoOfType(icmp4EchoReply, id, 3, nonce+1))},
		"a request":     {IPv4, ip4(from, 0, echoOfType(icmp4Echo, id, 3, nonce))},
		"other nonce 6": {IPv6, echoOfType(icmp6EchoReply, id, 3, nonce+1)},
		"other quote 6": {IPv6, append([]byte{1, 0, 0, 0, 0, 0, 0, 0}, make([]byte, 60)...)},
	} {
		if got, ok := parse(c.packet, c.family, id, nonce); ok {
			t.Errorf("%s was taken for %+v", name, got)
		}
	}
}

// FuzzParse holds that no packet of a hostile node makes the parser read
// outside the packet.
func FuzzParse(f *testing.F) {
	reply := ip4(from, 0, echoOfType(icmp4EchoReply, 1, 2, 3))
	f.Add(reply, true)
	f.Add(ip4(from, 1, append([]byte{3, 1, 0, 0, 0, 0, 0, 0}, reply...)), true)
	f.Add(echoOfType(icmp6EchoReply, 1, 2, 3), false)
	f.Add(binary.BigEndian.AppendUint64(nil, 1<<56), false)
	f.Fuzz(func(t *testing.T, packet []byte, four bool) {
		family := IPv6
		if four {
			family = IPv4
		}
		if a, ok := parse(packet, family, 1, 3); ok && a.problem == "" && len(packet) < echoLen {
			t.Errorf("%d bytes were taken for a reply", len(packet))
		}
	})
}
