package forward

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"

	"trellis/internal/vnet"
)

// Sizes of frames as RFC 2544 counts them, in bytes with the check sequence.
const (
	MinSize = 64
	MaxSize = 1518

	checkSequence = 4
)

// Lengths of headers in bytes.
const (
	ethernetLen = 14
	ipv4Len     = 20
	udpLen      = 8
	vxlanLen    = 8
	greLen      = 8
	// Places in an IPv4 header.
	checksumAt = 10
	sourceAt   = 12
	// headerMax is HEADER_BYTES of bpf/frame.h.
	headerMax = 112
)

const (
	etherTypeIPv4 = 0x0800
	protocolUDP   = 17
	protocolGRE   = 47
	firstTTL      = 64
	// The discard port (RFC 863): nobody answers.
	discardPort = 9
	// RFC 7348.
	vxlanPort  = 4789
	vxlanValid = 0x08
	// RFC 2784 and RFC 2890.
	greKeyPresent   = 0x2000
	etherTypeBridge = 0x6558
)

// frame is a frame by its header; the rest is zero.
type frame struct {
	header []byte
	// mask has the bits of the header that a receiver can foresee.
	mask []byte
	len  int // of the whole frame, without the check sequence
	// source is where the source address of the innermost IPv4 header is.
	source int
}

// endpoints say from where to where an IPv4 packet in an Ethernet frame goes.
type endpoints struct {
	srcMAC, dstMAC vnet.MAC
	src, dst       netip.Addr
}

// plain is a UDP packet in an Ethernet frame of a size.
func plain(e endpoints, ttl uint8, size int) frame {
	n := size - checkSequence
	h := e.udp(nil, ttl, n-ethernetLen, discardPort, discardPort)
	return frame{header: h, mask: bytes.Repeat([]byte{0xff}, len(h)), len: n, source: ethernetLen + sourceAt}
}

// udp appends the headers of an IPv4 packet of n bytes. The UDP checksum is 0:
// none (RFC 768).
func (e *endpoints) udp(h []byte, ttl uint8, n int, srcPort, dstPort uint16) []byte {
	h = e.ipv4(h, ttl, n, protocolUDP, 0)
	h = binary.BigEndian.AppendUint16(h, srcPort)
	h = binary.BigEndian.AppendUint16(h, dstPort)
	h = binary.BigEndian.AppendUint16(h, uint16(n-ipv4Len))
	return append(h, 0, 0)
}

// ipv4 appends the headers of Ethernet and of an IPv4 packet of n bytes.
func (e *endpoints) ipv4(h []byte, ttl uint8, n int, protocol uint8, fragment uint16) []byte {
	h = append(h, e.dstMAC[:]...)
	h = append(h, e.srcMAC[:]...)
	h = binary.BigEndian.AppendUint16(h, etherTypeIPv4)
	ip := len(h)
	h = append(h, 0x45, 0)
	h = binary.BigEndian.AppendUint16(h, uint16(n))
	h = append(h, 0, 0)
	h = binary.BigEndian.AppendUint16(h, fragment)
	h = append(h, ttl, protocol, 0, 0)
	src, dst := e.src.As4(), e.dst.As4()
	h = append(h, src[:]...)
	h = append(h, dst[:]...)
	binary.BigEndian.PutUint16(h[ip+checksumAt:], checksum(h[ip:]))
	return h
}

// wrap puts a frame into a tunnel of an identifier.
type wrap func(e endpoints, id uint32, inner frame) frame

// egreFrame puts a frame into EGRE: GRE with a key (RFC 2784, RFC 2890), without
// a bit of freedom.
func egreFrame(e endpoints, key uint32, inner frame) frame {
	const outer, dontFragment = ethernetLen + ipv4Len + greLen, 0x4000
	h := e.ipv4(nil, firstTTL, inner.len+outer-ethernetLen, protocolGRE, dontFragment)
	h = binary.BigEndian.AppendUint16(h, greKeyPresent)
	h = binary.BigEndian.AppendUint16(h, etherTypeBridge)
	h = binary.BigEndian.AppendUint32(h, key)
	mask := bytes.Repeat([]byte{0xff}, len(h))
	return frame{header: append(h, inner.header...), mask: append(mask, inner.mask...), len: inner.len + outer, source: outer + inner.source}
}

// gretapFrame is egreFrame as the kernel's gretap makes it, which numbers its
// packets in the outer IP identification.
func gretapFrame(e endpoints, key uint32, inner frame) frame {
	const ip = ethernetLen
	f := egreFrame(e, key, inner)
	for _, i := range []int{ip + 4, ip + 5, ip + checksumAt, ip + checksumAt + 1} {
		f.mask[i] = 0
	}
	return f
}

// vxlan puts a frame into a tunnel (RFC 7348). Left to whoever encapsulates are
// the outer IP identification, flags, TTL and checksum, and the outer UDP source
// port and checksum.
func vxlan(e endpoints, vni uint32, inner frame) frame {
	const outer = ethernetLen + ipv4Len + udpLen + vxlanLen
	h := e.udp(nil, firstTTL, inner.len+outer-ethernetLen, vxlanPort, vxlanPort)
	h = append(h, vxlanValid, 0, 0, 0)
	h = binary.BigEndian.AppendUint32(h, vni<<8)
	mask := bytes.Repeat([]byte{0xff}, len(h))
	const ip, udp = ethernetLen, ethernetLen + ipv4Len
	for _, i := range []int{ip + 4, ip + 5, ip + 6, ip + 7, ip + 8, ip + 10, ip + 11, udp, udp + 1, udp + 6, udp + 7} {
		mask[i] = 0
	}
	return frame{header: append(h, inner.header...), mask: append(mask, inner.mask...), len: inner.len + outer, source: outer + inner.source}
}

// ofFlows is the frame where the sources of so many flows may have sent it.
func (f frame) ofFlows(n int) frame {
	if n > 1 {
		f.mask = bytes.Clone(f.mask)
		clear(f.mask[f.source+2 : f.source+4])
		clear(f.mask[f.source+checksumAt-sourceAt : f.source+checksumAt-sourceAt+2])
	}
	return f
}

// words gives bytes as the words of 8 bytes that the programs handle.
func words(b []byte) (w [headerMax / 8]uint64) {
	var padded [headerMax]byte
	copy(padded[:], b)
	for i := range w {
		w[i] = binary.NativeEndian.Uint64(padded[i*8:])
	}
	return w
}

// checksum is the internet checksum (RFC 1071).
func checksum(b []byte) uint16 {
	sum := uint32(0)
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// difference says how a frame that was seen differs from the expected one.
func (f *frame) difference(seen []byte, length int) string {
	if length != f.len {
		return fmt.Sprintf("its length is %d bytes, not %d; it begins % x", length, f.len, seen[:min(length, len(seen), 64)])
	}
	for i := range f.header {
		if (seen[i]^f.header[i])&f.mask[i] != 0 {
			return fmt.Sprintf("byte %d is %#02x, not %#02x; it begins % x", i, seen[i], f.header[i], seen[:len(f.header)])
		}
	}
	return "the next one was as it should be"
}
