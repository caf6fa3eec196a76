package interop

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/safchain/ethtool"

	"trellis/internal/bench"
	"trellis/internal/vnet"
)

// cardsPrefix begins the addresses of network cards that this test may take, as
// test/qemu gives them to its guest; the fifth byte tells which two share a
// wire.
var cardsPrefix = [4]byte{0x52, 0x54, 0x00, 0xee}

// Uplinks that are network cards: what their drivers offload, and how they run
// XDP, differ; the frames must not.
func TestCards(t *testing.T) {
	for _, c := range findCards(t) {
		t.Run(c.driver, func(t *testing.T) {
			for name, ipv6 := range map[string]bool{"over IPv4": false, "over IPv6": true} {
				t.Run(name, func(t *testing.T) {
					l := newCardLab(t, c, underlay{ipv6: ipv6, mtu: 1500})
					near, far := l.pair(t)
					cross(t, l, near, far, 401)
					for _, a := range []string{"10.0.0.2", "fd00::2"} {
						transfer(t, near, far, a, bulk())
					}
					for _, a := range []string{"10.0.0.1", "fd00::1"} {
						transfer(t, far, near, a, bulk())
					}
					l.wire.sound(t)
					r := newRouter(t, l)
					for _, fast := range []bool{false, l.here.plane.FastPathSupported() == nil} {
						r.setFast(t, fast)
						transfer(t, r.ends[0], r.ends[1], "10.2.0.2", bulk())
						transfer(t, r.ends[1], r.ends[0], "fd01::2", bulk())
					}
					l.wire.sound(t)
				})
			}
		})
	}
}

// cards are two network cards on a wire.
type cards struct {
	driver string
	names  [2]string
	macs   [2]vnet.MAC
}

// findCards finds them, or skips the test.
func findCards(t *testing.T) []cards {
	t.Helper()
	all, err := net.Interfaces()
	must(t, err)
	byHub := map[byte]*cards{}
	for _, i := range all {
		m := i.HardwareAddr
		if len(m) != 6 || [4]byte(m) != cardsPrefix || m[5] > 1 {
			continue
		}
		c := byHub[m[4]]
		if c == nil {
			c = &cards{}
			byHub[m[4]] = c
		}
		driver, err := os.Readlink("/sys/class/net/" + i.Name + "/device/driver")
		must(t, err)
		c.driver, c.names[m[5]], c.macs[m[5]] = filepath.Base(driver), i.Name, vnet.MAC(m)
	}
	var found []cards
	for _, c := range byHub {
		if c.names[0] != "" && c.names[1] != "" {
			found = append(found, *c)
		}
	}
	if len(found) == 0 {
		t.Skip("needs network cards in pairs, for it alone: test/qemu has them")
	}
	slices.SortFunc(found, func(a, b cards) int { return int(a.macs[0][4]) - int(b.macs[0][4]) })
	return found
}

// newCardLab makes a lab whose wire is between two cards, with gretap at the far
// end. The test's tap is at the far card.
func newCardLab(t *testing.T, c cards, u underlay) *lab {
	t.Helper()
	needGretap(t)
	l := &lab{underlay: u, own: newHost(t, 1), far: newHost(t, 2)}
	for i, h := range []*host{l.own, l.far} {
		h.mac = c.macs[i]
		take(t, h, c.names[i])
	}
	// What the tap reads is what came by the wire.
	must(t, l.far.Do(func() error { return bench.SetReceiveOffload("up0", false) }))
	l.wire = &wire{Node: l.far.Node, stop: make(chan struct{}), taps: [2]int{-1, -1}, seen: [2]seen{newSeen(), newSeen()}, ours: [2]bool{true, false}}
	must(t, l.wire.Do(func() error { return l.wire.tap(0, "up0") }))
	l.wire.start(t)
	l.here = newTrellis(t, l.own, l.far, u)
	l.there = newGretap(t, l.far, l.own, u)
	t.Logf("%s: XDP is %v", c.driver, l.here.mode)
	must(t, l.own.Do(func() error {
		e, err := ethtool.NewEthtool()
		if err != nil {
			return err
		}
		defer e.Close()
		features, err := e.Features("up0")
		var on []string
		for name, is := range features {
			if is && len(name) > 3 && name[:3] == "tx-" {
				on = append(on, name)
			}
		}
		slices.Sort(on)
		t.Logf("%s offloads %v", c.driver, on)
		return err
	}))
	return l
}

// take moves a card into a root context, as up0, and has it back at the end
// under the name that it had.
func take(t *testing.T, h *host, name string) {
	t.Helper()
	h.Must(t, fmt.Sprintf("nsenter -t %d -n ip link set %s netns %d name up0", os.Getpid(), name, h.Pid))
	t.Cleanup(func() {
		h.Must(t, fmt.Sprintf("ip link set up0 down; ip link set up0 netns %d name %s", os.Getpid(), name))
	})
}
