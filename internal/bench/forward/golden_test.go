package forward

import (
	"encoding/hex"
	"encoding/json"
	"flag"
	"net/netip"
	"os"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files anew")

func TestReportJSON(t *testing.T) {
	got, err := json.MarshalIndent(testReport(), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	const path = "testdata/report.json"
	got = append(got, '\n')
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("the JSON has changed, which programs rely on; if that is meant, run `go test -update`. Now it is:\n%s", got)
	}
}

// The example of RFC 1071, section 3.
func TestChecksum(t *testing.T) {
	if got := checksum([]byte{0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7}); got != ^uint16(0xddf2) {
		t.Errorf("checksum is %#04x", got)
	}
}

// Frames by hand, octet by octet.
func TestFrames(t *testing.T) {
	e := endpoints{srcMAC: genMAC, dstMAC: inMAC, src: netip.MustParseAddr("198.18.0.2"), dst: netip.MustParseAddr("198.19.0.2")}
	inner := plain(e, 64, 64)
	const plainHex = "02bec4000003" + "02bec4000001" + "0800" +
		"4500002e00000000" + "4011ee95" + "c6120002" + "c6130002" +
		"00090009" + "001a0000"
	if got := hex.EncodeToString(inner.header); got != plainHex || inner.len != 60 {
		t.Errorf("a plain frame has %d bytes and the header %s, want %s", inner.len, got, plainHex)
	}
	outer := vxlan(endpoints{srcMAC: genMAC, dstMAC: inMAC, src: tunnelFrom, dst: tunnelIn}, 0xabcdef, inner)
	const vxlanHex = "02bec4000003" + "02bec4000001" + "0800" +
		"4500006000000000" + "4011f689" + "c0000202" + "c0000201" +
		"12b512b5" + "004c0000" + "08000000" + "abcdef00" + plainHex
	if got := hex.EncodeToString(outer.header); got != vxlanHex || outer.len != 110 {
		t.Errorf("a tunnelled frame has %d bytes and the header\n%s, want\n%s", outer.len, got, vxlanHex)
	}
	if len(outer.mask) != len(outer.header) || outer.mask[ethernetLen+4] != 0 || outer.mask[50] != 0xff {
		t.Errorf("the mask is % x", outer.mask)
	}
	egre := egreFrame(endpoints{srcMAC: genMAC, dstMAC: inMAC, src: tunnelFrom, dst: tunnelIn}, 0xabcdef01, inner)
	const egreHex = "02bec4000003" + "02bec4000001" + "0800" +
		"4500005800004000" + "402fb673" + "c0000202" + "c0000201" +
		"20006558" + "abcdef01" + plainHex
	if got := hex.EncodeToString(egre.header); got != egreHex || egre.len != 102 || len(egre.mask) != len(egre.header) {
		t.Errorf("a frame in EGRE has %d bytes and the header\n%s, want\n%s", egre.len, got, egreHex)
	}
	if len(outer.header) > headerMax || (len(outer.header)+7)&^7 > outer.len {
		t.Errorf("a header of %d bytes does not fit the programs", len(outer.header))
	}
}
