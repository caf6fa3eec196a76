package equal

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// outputs are the frames that a router has sent, by interface and bytes, and how
// often.
type outputs map[string]int

// add counts a frame, in the form in which those of the two routers are to be
// the same.
func (o outputs) add(name string, frame []byte) {
	if f := canonical(frame); f != nil {
		o[name+" "+string(f)]++
	}
}

// own4 are addresses that a world may give its routers besides 10.x.0.1.
var own4 = prefixes{netip.MustParsePrefix("20.0.77.0/24"), netip.MustParsePrefix("30.0.0.0/24")}

type prefixes []netip.Prefix

// Contains tells whether an address is of one of the prefixes.
func (p prefixes) Contains(a netip.Addr) bool {
	return slices.ContainsFunc(p, func(p netip.Prefix) bool { return p.Contains(a) })
}

// canonical gives a frame without its padding, and without what a router makes
// up anew each time: the ID of its own packets and fragments. nil: the frame does not
// count, since it comes whenever it likes: ARP, neighbour and router discovery,
// group membership, redirects (which are limited to a few), and the end of a
// reassembly that has waited.
func canonical(frame []byte) []byte {
	f := slices.Clone(frame)
	if len(f) < 14 {
		return f
	}
	switch ip := f[14:]; binary.BigEndian.Uint16(f[12:]) {
	case 0x0806:
		return nil
	case 0x0800:
		if len(ip) < 20 {
			return f
		}
		if total := int(binary.BigEndian.Uint16(ip[2:])); total >= 20 && total <= len(ip) {
			ip = ip[:total]
		}
		own := ip[12] == 10 && ip[14] == 0 && ip[15] == 1 || own4.Contains(netip.AddrFrom4([4]byte(ip[12:16])))
		if ip[9] == 2 && own {
			return nil
		}
		if header := int(ip[0]&15) * 4; ip[9] == 1 && len(ip) > header+1 {
			t, code := ip[header], ip[header+1]
			if own && (t == 5 || t == 11 && code == 1) {
				return nil
			}
			own = own || t == 3 || t == 4 || t == 11 || t == 12
		}
		if own {
			clear(ip[4:6])
			clear(ip[10:12])
		}
		return f[:14+len(ip)]
	case 0x86dd:
		if len(ip) < 40 {
			return f
		}
		if total := int(binary.BigEndian.Uint16(ip[4:])) + 40; total <= len(ip) {
			ip = ip[:total]
		}
		next, at := ip[6], 40
		if next == 0 && len(ip) > 48 { // the router alert of MLD
			next, at = ip[40], 48
		}
		own := ip[8] == 0xfe && ip[9] == 0x80 || ip[8] == 0xfd && ip[23] == 1 || binary.BigEndian.Uint64(ip[8:]) == 0
		if own && next == 44 && len(ip) >= 48 {
			clear(ip[44:48])
		}
		if next == 58 && len(ip) > at+1 {
			t, code := ip[at], ip[at+1]
			if own && (t >= 130 && t <= 137 || t == 143 || t == 3 && code == 1) {
				return nil
			}
		}
		return f[:14+len(ip)]
	}
	return f
}

// difference says how the two outputs differ; empty: they do not.
func (o out) difference() string {
	var b strings.Builder
	for _, f := range slices.Sorted(maps.Keys(merged(o))) {
		if a, c := o[0][f], o[1][f]; a != c {
			name, frame, _ := strings.Cut(f, " ")
			fmt.Fprintf(&b, "%s: fast %d times, slow %d times: %x\n", name, a, c, frame)
		}
	}
	return b.String()
}

func merged(o out) outputs {
	all := maps.Clone(o[0])
	maps.Copy(all, o[1])
	return all
}

// try sends frames to both routers and compares what comes out.
func (p *pair) try(shots []shot, quiet time.Duration) (out, error) {
	for _, s := range shots {
		for _, r := range p.routers {
			if err := p.put(r, s); err != nil {
				return out{}, err
			}
		}
	}
	return p.gather(quiet), nil
}

// settle is try where nobody looks twice: while there is a difference, it waits
// for what one of the routers may yet send, since a busy machine may be late.
func (p *pair) settle(shots []shot) (out, error) {
	o, err := p.try(shots, surely)
	for i := 0; i < 10 && err == nil && o.difference() != ""; i++ {
		for which, late := range p.gather(surely) {
			for f, times := range late {
				o[which][f] += times
			}
		}
	}
	return o, err
}

// Waits for what comes out: at first, and where that makes a difference.
const (
	soon   = 2 * time.Millisecond
	surely = 60 * time.Millisecond
)

// differs sends frames and tells how the outputs differ, if they do so again and
// again.
func (p *pair) differs(shots []shot) (string, error) {
	o, err := p.try(shots, soon)
	for range 2 {
		if err != nil || o.difference() == "" {
			return "", err
		}
		p.gather(surely)
		o, err = p.try(shots, surely)
	}
	return o.difference(), err
}

// narrow finds one of the frames that makes a difference by itself, or as few of
// them as it can.
func (p *pair) narrow(shots []shot) ([]shot, error) {
	for size := len(shots) / 2; size > 0; {
		cut := false
		for at := 0; at < len(shots) && len(shots) > 1; {
			rest := slices.Concat(shots[:at], shots[min(at+size, len(shots)):])
			d, err := p.differs(rest)
			if err != nil {
				return nil, err
			}
			if d != "" && len(rest) > 0 {
				shots, cut = rest, true
			} else {
				at += size
			}
		}
		if !cut {
			size /= 2
		}
	}
	return shots, nil
}
