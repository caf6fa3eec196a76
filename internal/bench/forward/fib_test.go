package forward

import (
	"net/netip"
	"testing"

	"trellis/test/testenv"
)

// What a forwarder in user space makes of a frame is what a router makes of it.
func TestUserForward(t *testing.T) {
	testenv.Measures(t)
	fib := userTable(1000)
	c, err := lookUp(UserPacket)
	if err != nil {
		t.Fatal(err)
	}
	k := c.kind(0, MinSize)
	send, expect := k.send, k.expect
	got := make([]byte, send.len)
	for _, ttl := range []uint8{firstTTL, 2} { // a checksum with and without a carry, too
		send := plain(endpoints{srcMAC: genMAC, dstMAC: inPortMAC(0), src: sourceHost, dst: sinkHost}, ttl, MinSize)
		expect = plain(endpoints{srcMAC: outPortMAC(0), dstMAC: sinkMAC, src: sourceHost, dst: sinkHost}, ttl-1, MinSize)
		copy(got, send.header)
		if !fib.forward(got) || string(got[:len(expect.header)]) != string(expect.header) {
			t.Errorf("TTL %d: sent\n% x\n% x\nwant\n% x", ttl, send.header, got, expect.header)
		}
	}
	for name, spoil := range map[string]func(b []byte){
		"TTL 1":    func(b []byte) { copy(b, plain(endpoints{dst: sinkHost, src: sourceHost}, 1, MinSize).header) },
		"ARP":      func(b []byte) { b[13] = 6 },
		"checksum": func(b []byte) { b[ethernetLen+checksumAt]++ },
		"options":  func(b []byte) { b[ethernetLen] = 0x46 },
		"no route": func(b []byte) {
			copy(b, plain(endpoints{dst: netip.MustParseAddr("203.0.113.255"), src: sourceHost}, 9, MinSize).header)
		},
	} {
		b := make([]byte, send.len)
		copy(b, send.header)
		spoil(b)
		before := string(b)
		if fib.forward(b) || string(b) != before {
			t.Errorf("%s: it is forwarded or changed", name)
		}
	}
	if fib.forward(nil) {
		t.Error("an empty frame is forwarded")
	}
}

func TestLongestPrefixWins(t *testing.T) {
	var fib table
	fib.add(netip.MustParsePrefix("0.0.0.0/0"), hop{dst: genMAC})
	fib.add(netip.MustParsePrefix("198.18.0.0/15"), hop{dst: inMAC})
	fib.add(netip.MustParsePrefix("198.19.0.0/24"), hop{dst: outMAC})
	fib.add(netip.MustParsePrefix("198.19.0.7/32"), hop{dst: sinkMAC})
	for dst, want := range map[uint32]hop{
		0xc6130007: {dst: sinkMAC}, 0xc6130008: {dst: outMAC}, 0xc6130108: {dst: inMAC}, 0x01020304: {dst: genMAC},
	} {
		if got, ok := fib.lookUp(dst); !ok || got != want {
			t.Errorf("%08x goes to %v", dst, got)
		}
	}
}
