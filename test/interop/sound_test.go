package interop

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
)

// Numbers of protocols and EtherTypes.
const (
	ethIPv4, ethIPv6 = 0x0800, 0x86dd
	protoICMP        = 1
	protoTCP         = 6
	protoUDP         = 17
	protoGRE         = 47
	protoICMPv6      = 58

	ethSize, leastEth = 14, 60 // without the FCS
	greSize           = 8
)

// rawMAC is the sender of frames that are no IP packets, whatever they say.
var rawMAC = [6]byte{2, 0, 0, 0, 0, 8}

// outer is what the outer headers of an EGRE frame say.
type outer struct {
	ipv6     bool
	tos, ttl byte
	label    uint32 // of the flow, IPv6
	df       bool
	id       uint16
	src, dst netip.Addr
	key      uint32
	inner    []byte // the inner frame
}

// isGRE reports whether a frame of the underlay holds a GRE packet.
func isGRE(f []byte) bool {
	if len(f) < ethSize+20 {
		return false
	}
	switch binary.BigEndian.Uint16(f[12:]) {
	case ethIPv4:
		return f[ethSize+9] == protoGRE
	case ethIPv6:
		next := f[ethSize+6]
		return next == protoGRE || (next == 60 || next == 44) && len(f) > ethSize+40 && f[ethSize+40] == protoGRE
	}
	return false
}

// readOuter reads an EGRE frame, and fails if one bit of its outer headers is not
// as RFC 791, RFC 8200, RFC 2784 and RFC 2890 want it.
func readOuter(f []byte) (o outer, err error) {
	var packet []byte
	ip := f[ethSize:]
	switch binary.BigEndian.Uint16(f[12:]) {
	case ethIPv4:
		packet, err = ipv4Packet(ip)
		if err != nil {
			return o, fmt.Errorf("outer %w", err)
		}
		flags := binary.BigEndian.Uint16(ip[6:])
		o = outer{tos: ip[1], ttl: ip[8], df: flags&0x4000 != 0, id: binary.BigEndian.Uint16(ip[4:])}
		o.src, o.dst = netip.AddrFrom4([4]byte(ip[12:])), netip.AddrFrom4([4]byte(ip[16:]))
		switch {
		case ip[0] != 0x45:
			return o, errors.New("outer IPv4 header with options")
		case flags&0x3fff != 0:
			return o, errors.New("outer fragment")
		case flags&0x8000 != 0:
			return o, errors.New("outer IPv4 header with a reserved flag")
		}
		packet = packet[20:]
	case ethIPv6:
		packet, err = ipv6Packet(ip)
		if err != nil {
			return o, fmt.Errorf("outer %w", err)
		}
		first := binary.BigEndian.Uint32(ip)
		o = outer{ipv6: true, tos: byte(first >> 20), label: first & 0xfffff, ttl: ip[7]}
		o.src, o.dst = netip.AddrFrom16([16]byte(ip[8:])), netip.AddrFrom16([16]byte(ip[24:]))
		if ip[6] != protoGRE {
			return o, fmt.Errorf("outer extension header %d", ip[6])
		}
		packet = packet[40:]
	}
	if len(packet) < greSize+ethSize {
		return o, fmt.Errorf("%d bytes of GRE", len(packet))
	}
	if flags, protocol := binary.BigEndian.Uint16(packet), binary.BigEndian.Uint16(packet[2:]); flags != 0x2000 || protocol != 0x6558 {
		return o, fmt.Errorf("GRE header %04x %04x", flags, protocol)
	}
	o.key = binary.BigEndian.Uint32(packet[4:])
	o.inner = packet[greSize:]
	return o, nil
}

// ipv4Packet checks an IPv4 header and its length, and gives the packet without
// the Ethernet frame's padding.
func ipv4Packet(ip []byte) ([]byte, error) {
	if len(ip) < 20 || ip[0]>>4 != 4 {
		return nil, errors.New("IPv4 header is none")
	}
	header, total := int(ip[0]&15)*4, int(binary.BigEndian.Uint16(ip[2:]))
	switch {
	case header < 20 || header > total:
		return nil, fmt.Errorf("IPv4 header of %d bytes, packet of %d", header, total)
	case total > len(ip):
		return nil, fmt.Errorf("IPv4 packet of %d bytes in a frame that has %d for it", total, len(ip))
	case len(ip) > total && ethSize+len(ip) > leastEth:
		return nil, fmt.Errorf("IPv4 packet of %d bytes with %d behind it", total, len(ip)-total)
	case sum(0, ip[:header]) != 0xffff:
		return nil, fmt.Errorf("IPv4 header checksum is wrong: %x", ip[:header])
	}
	return ip[:total], nil
}

// ipv6Packet does the same for IPv6.
func ipv6Packet(ip []byte) ([]byte, error) {
	if len(ip) < 40 || ip[0]>>4 != 6 {
		return nil, errors.New("IPv6 header is none")
	}
	total := 40 + int(binary.BigEndian.Uint16(ip[4:]))
	switch {
	case total > len(ip):
		return nil, fmt.Errorf("IPv6 packet of %d bytes in a frame that has %d for it", total, len(ip))
	case len(ip) > total && ethSize+len(ip) > leastEth:
		return nil, fmt.Errorf("IPv6 packet of %d bytes with %d behind it", total, len(ip)-total)
	}
	return ip[:total], nil
}

// soundFrame checks the lengths and checksums of what a frame holds: TCP, UDP,
// ICMP, over IPv4 and IPv6, behind VLAN tags. Other frames are sound.
func soundFrame(f []byte) error {
	if len(f) < ethSize {
		return fmt.Errorf("a frame of %d bytes", len(f))
	}
	if [6]byte(f[6:]) == rawMAC {
		return nil
	}
	at := 12
	for isTag(f[at:]) {
		at += 4
	}
	if len(f) < at+2 {
		return nil
	}
	payload := f[at+2:]
	switch binary.BigEndian.Uint16(f[at:]) {
	case ethIPv4:
		return soundIPv4(payload)
	case ethIPv6:
		return soundIPv6(payload)
	}
	return nil
}

func isTag(b []byte) bool {
	if len(b) < 4 {
		return false
	}
	t := binary.BigEndian.Uint16(b)
	return t == 0x8100 || t == 0x88a8
}

func soundIPv4(ip []byte) error {
	packet, err := ipv4Packet(ip)
	if err != nil {
		return err
	}
	if binary.BigEndian.Uint16(packet[6:])&0x3fff != 0 {
		return nil // a fragment: its checksum is that of the whole
	}
	return soundPayload(packet[9], packet[12:20], packet[packet[0]&15*4:])
}

func soundIPv6(ip []byte) error {
	packet, err := ipv6Packet(ip)
	if err != nil {
		return err
	}
	next, payload := packet[6], packet[40:]
	for next == 0 || next == 43 || next == 60 {
		if len(payload) < 8 || len(payload) < int(payload[1]+1)*8 {
			return errors.New("IPv6 extension header cut short")
		}
		next, payload = payload[0], payload[int(payload[1]+1)*8:]
	}
	return soundPayload(next, packet[8:40], payload)
}

// soundPayload checks the checksum of a whole packet's payload, with the pseudo
// header of the addresses.
func soundPayload(protocol byte, addresses, payload []byte) error {
	pseudo := sum(0, addresses) + uint32(protocol) + uint32(len(payload))
	switch protocol {
	case protoICMP:
		pseudo = 0
	case protoUDP:
		if len(payload) < 8 {
			return errors.New("UDP cut short")
		}
		if length := int(binary.BigEndian.Uint16(payload[4:])); length != len(payload) {
			return fmt.Errorf("UDP of %d bytes in a packet that has %d for it", length, len(payload))
		}
		if len(addresses) == 8 && payload[6] == 0 && payload[7] == 0 {
			return nil // none, which IPv4 allows
		}
	case protoTCP, protoICMPv6:
	default:
		return nil
	}
	if sum(pseudo, payload) != 0xffff {
		return fmt.Errorf("checksum of protocol %d is wrong, %d bytes", protocol, len(payload))
	}
	return nil
}

// sum is the ones' complement sum of RFC 1071, from a start.
func sum(start uint32, b []byte) uint32 {
	s := uint64(start)
	for ; len(b) >= 4; b = b[4:] {
		s += uint64(binary.BigEndian.Uint32(b))
	}
	for ; len(b) >= 2; b = b[2:] {
		s += uint64(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		s += uint64(b[0]) << 8
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return uint32(s)
}
