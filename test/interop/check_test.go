package interop

import (
	"bytes"
	"encoding/binary"
	"testing"
)

// What looks at the frames would notice a wrong one: whichever byte of a sound
// frame is changed, but for what has no redundancy, it is no longer sound.
func TestTheCheckerNotices(t *testing.T) {
	host, gate := []byte{2, 0, 0, 0, 0, 1}, []byte{2, 0, 0, 0, 0, 2}
	tcp := make([]byte, 33)
	src4, dst4 := []byte{10, 0, 0, 1}, []byte{10, 0, 0, 2}
	binary.BigEndian.PutUint16(tcp[16:], ^uint16(sum(sum(0, join(src4, dst4))+protoTCP+uint32(len(tcp)), tcp)))
	echo := []byte{8, 0, 0, 0, 1, 2, 3, 4, 5}
	binary.BigEndian.PutUint16(echo[2:], ^uint16(sum(0, echo)))
	inner := map[string][]byte{
		"UDP":         join(host, gate, []byte{8, 0}, packet4(protoUDP, src4, dst4, 7, []byte("hello"))),
		"UDP, tagged": join(host, gate, []byte{0x88, 0xa8, 0, 1, 0x81, 0, 0, 2, 8, 0}, packet4(protoUDP, src4, dst4, 7, []byte("hello"))),
		"UDPv6":       join(host, gate, []byte{0x86, 0xdd}, packet6(protoUDP, ip6(1), ip6(2), 7, []byte("hello!"))),
		"TCP":         join(host, gate, []byte{8, 0}, packet4(protoTCP, src4, dst4, 0, tcp)),
		"ICMP":        join(host, gate, []byte{8, 0}, packet4(protoICMP, src4, dst4, 0, echo)),
	}
	for name, f := range inner {
		// Nothing covers the IPv6 header's traffic class, flow label and hop limit;
		// and an unknown next header has no checksum.
		at := bytes.Index(f, []byte{8, 0, 0x45})
		open := map[int]bool{}
		if name == "UDPv6" {
			at = 12
			open = map[int]bool{3: true, 4: true, 5: true, 8: true, 9: true}
		}
		for _, long := range []bool{false, true} { // padded to 60 bytes, or not
			if err := soundFrame(f); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			for i := at + 2; i < len(f); i++ {
				wrong := bytes.Clone(f)
				wrong[i] ^= 0x40
				if long {
					wrong = append(wrong, make([]byte, max(0, leastEth-len(f)))...)
				}
				if err := soundFrame(wrong); (err == nil) != open[i-at] {
					t.Errorf("%s, byte %d changed: %v", name, i, err)
				}
			}
			if err := soundFrame(f[:len(f)-1]); err == nil {
				t.Errorf("%s, cut: sound", name)
			}
		}
		if err := soundFrame(join(f, make([]byte, 60))); err == nil {
			t.Errorf("%s, with 60 bytes behind it: sound", name)
		}
	}

	gre := []byte{0x20, 0, 0x65, 0x58, 0, 0, 0, 7}
	for name, f := range map[string][]byte{
		"over IPv4": join(gate, host, []byte{8, 0}, packet4(protoGRE, src4, dst4, 0, join(gre, inner["UDP"]))),
		"over IPv6": join(gate, host, []byte{0x86, 0xdd}, packet6(protoGRE, ip6(1), ip6(2), 0, join(gre, inner["UDP"]))),
	} {
		o, err := readOuter(f)
		if err != nil || o.key != 7 || !bytes.Equal(o.inner, inner["UDP"]) || o.ttl != 64 {
			t.Fatalf("%s: %+v, %v", name, o, err)
		}
		if !isGRE(f) {
			t.Errorf("%s: is not GRE", name)
		}
		start := len(f) - len(inner["UDP"]) - len(gre)
		for i := range 4 { // flags and protocol; the key may be any
			wrong := bytes.Clone(f)
			wrong[start+i] ^= 1
			if _, err := readOuter(wrong); err == nil {
				t.Errorf("%s, byte %d of GRE changed: sound", name, i)
			}
		}
		if start == ethSize+20 {
			for i := range 20 {
				wrong := bytes.Clone(f)
				wrong[ethSize+i] ^= 1
				if _, err := readOuter(wrong); err == nil && isGRE(wrong) {
					t.Errorf("%s, byte %d of the IP header changed: sound", name, i)
				}
			}
		}
		if _, err := readOuter(f[:len(f)-1]); err == nil {
			t.Errorf("%s, cut: sound", name)
		}
		if _, err := readOuter(join(f, []byte{0})); err == nil && len(f) >= leastEth {
			t.Errorf("%s, a byte more: sound", name)
		}
	}
	for name, o := range map[string]outer{
		"a TTL": {ttl: 63, df: true}, "a class": {ttl: 64, tos: 4, df: true}, "no DF": {ttl: 64},
		"an ID": {ttl: 64, df: true, id: 4711}, "a label": {ttl: 64, ipv6: true, label: 1},
	} {
		if asWeSend(o) == nil {
			t.Errorf("%s that Trellis does not send is accepted", name)
		}
	}
}
