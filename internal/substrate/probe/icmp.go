package probe

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Message types: RFC 792, RFC 4443.
const (
	icmp4EchoReply    = 0
	icmp4Unreachable  = 3
	icmp4Echo         = 8
	icmp4TimeExceeded = 11
	icmp4Parameter    = 12

	icmp6Unreachable  = 1
	icmp6TooBig       = 2
	icmp6TimeExceeded = 3
	icmp6Parameter    = 4
	icmp6Echo         = 128
	icmp6EchoReply    = 129
)

const (
	icmpHeader = 8
	ip4Header  = 20 // without options
	ip6Header  = 40
	echoLen    = icmpHeader + 8
)

// echoRequest writes an echo request into b, which has echoLen bytes. The nonce
// is its payload, so that a reply to something else is not taken for ours. The
// ICMPv6 checksum is left to the kernel (RFC 3542, section 3.1).
func echoRequest(b []byte, family string, id, seq uint16, nonce uint64) {
	b[0], b[1] = icmp4Echo, 0
	if family == IPv6 {
		b[0] = icmp6Echo
	}
	binary.BigEndian.PutUint16(b[2:], 0)
	binary.BigEndian.PutUint16(b[4:], id)
	binary.BigEndian.PutUint16(b[6:], seq)
	binary.BigEndian.PutUint64(b[8:], nonce)
	if family == IPv4 {
		binary.BigEndian.PutUint16(b[2:], checksum(b[:echoLen]))
	}
}

// checksum is the Internet checksum (RFC 1071) of an even number of bytes.
func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// answer is what came back for the request with the sequence number seq.
type answer struct {
	seq     uint16
	from    netip.Addr // of an IPv4 packet; an IPv6 raw socket gives it apart
	problem string     // empty: an echo reply; else what an ICMP error says
}

// parse reads what a raw socket received: an IPv4 packet, or an ICMPv6 message
// without its IPv6 header. It reports whether that answers a request with this
// id and nonce; what a tenant's nodes send is not trusted to be well formed.
func parse(b []byte, family string, id uint16, nonce uint64) (answer, bool) {
	if family == IPv6 {
		return parse6(b, id, nonce)
	}
	return parse4(b, id, nonce)
}

func parse4(b []byte, id uint16, nonce uint64) (answer, bool) {
	icmp, ok := skip4(b)
	if !ok || len(icmp) < icmpHeader {
		return answer{}, false
	}
	a := answer{from: netip.AddrFrom4([4]byte(b[12:16]))}
	switch icmp[0] {
	case icmp4EchoReply:
		a.seq, ok = echoOf(icmp, icmp4EchoReply, id)
		return a, ok && len(icmp) >= echoLen && binary.BigEndian.Uint64(icmp[8:]) == nonce
	case icmp4Unreachable, icmp4TimeExceeded, icmp4Parameter:
		inner, ok := skip4(icmp[icmpHeader:])
		if !ok {
			return answer{}, false
		}
		a.problem = problem4(icmp[0], icmp[1])
		a.seq, ok = echoOf(inner, icmp4Echo, id)
		return a, ok
	}
	return answer{}, false
}

func parse6(icmp []byte, id uint16, nonce uint64) (answer, bool) {
	if len(icmp) < icmpHeader {
		return answer{}, false
	}
	var a answer
	var ok bool
	switch icmp[0] {
	case icmp6EchoReply:
		a.seq, ok = echoOf(icmp, icmp6EchoReply, id)
		return a, ok && len(icmp) >= echoLen && binary.BigEndian.Uint64(icmp[8:]) == nonce
	case icmp6Unreachable, icmp6TooBig, icmp6TimeExceeded, icmp6Parameter:
		inner := icmp[icmpHeader:]
		if len(inner) < ip6Header || inner[6] != unix.IPPROTO_ICMPV6 {
			return answer{}, false
		}
		a.problem = problem6(icmp[0], icmp[1])
		a.seq, ok = echoOf(inner[ip6Header:], icmp6Echo, id)
		return a, ok
	}
	return answer{}, false
}

// skip4 returns what follows an IPv4 header that carries ICMP.
func skip4(b []byte) ([]byte, bool) {
	if len(b) < ip4Header || b[0]>>4 != 4 || b[9] != unix.IPPROTO_ICMP {
		return nil, false
	}
	header := int(b[0]&0xf) * 4
	if header < ip4Header || len(b) < header {
		return nil, false
	}
	return b[header:], true
}

// echoOf returns the sequence number of an echo message of this type and id.
func echoOf(icmp []byte, typ byte, id uint16) (uint16, bool) {
	if len(icmp) < icmpHeader || icmp[0] != typ || binary.BigEndian.Uint16(icmp[4:]) != id {
		return 0, false
	}
	return binary.BigEndian.Uint16(icmp[6:]), true
}

func problem4(typ, code byte) string {
	switch typ {
	case icmp4TimeExceeded:
		return "time to live exceeded"
	case icmp4Unreachable:
		switch code {
		case 0:
			return "network unreachable"
		case 1:
			return "host unreachable"
		case 4:
			return "fragmentation needed"
		case 9, 10, 13:
			return "administratively prohibited"
		}
		return fmt.Sprintf("destination unreachable, code %d", code)
	}
	return fmt.Sprintf("parameter problem, code %d", code)
}

func problem6(typ, code byte) string {
	switch typ {
	case icmp6TimeExceeded:
		return "hop limit exceeded"
	case icmp6TooBig:
		return "packet too big"
	case icmp6Unreachable:
		switch code {
		case 0:
			return "no route to destination"
		case 1:
			return "administratively prohibited"
		case 3:
			return "address unreachable"
		case 6:
			return "route rejected"
		}
		return fmt.Sprintf("destination unreachable, code %d", code)
	}
	return fmt.Sprintf("parameter problem, code %d", code)
}
