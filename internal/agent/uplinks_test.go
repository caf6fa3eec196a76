package agent

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"trellis/internal/substrate/dataplane"
	"trellis/internal/substrate/nstest"
)

var silent = slog.New(slog.NewTextHandler(io.Discard, nil))

// machine is a root context with an interface up0 to a router.
type machine struct {
	t      *testing.T
	router *nstest.Node
	dir    string
	paths  *dataplane.Dataplane
}

func newMachine(t *testing.T) *machine {
	nstest.Root(t)
	m := &machine{t: t, router: nstest.NewNode(t), dir: t.TempDir()}
	if err := dataplane.Mount(m.dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := dataplane.Unmount(m.dir); err != nil {
			t.Error(err)
		}
	})
	m.open()
	m.cable()
	return m
}

func (m *machine) open() {
	paths, err := dataplane.Open(m.dir)
	if err != nil {
		m.t.Fatal(err)
	}
	m.paths = paths
	m.t.Cleanup(func() { paths.Close() })
}

func (m *machine) cable() {
	nstest.Sh(m.t, fmt.Sprintf(`ip link set lo up; ip link add up0 type veth peer name r0 netns %d
		ip addr add 192.0.2.1/24 dev up0; ip addr add 2001:db8::1/64 dev up0 nodad; ip link set up0 up`, m.router.Pid))
	m.router.Must(m.t, "ip link set r0 up")
}

func (m *machine) start(config ...Uplink) (*uplinks, error) {
	u, err := newUplinks(config, m.paths)
	if err == nil && u != nil {
		m.t.Cleanup(func() {
			if err := u.underlay.Close(); err != nil {
				m.t.Error(err)
			}
		})
		u.refresh(silent)
	}
	return u, err
}

// TestUplinksThatCannotServe refuses each with one sentence, and attaches none.
func TestUplinksThatCannotServe(t *testing.T) {
	m := newMachine(t)
	addr := netip.MustParseAddr
	for _, c := range []struct {
		set, unset string
		uplinks    []Uplink
		says       string
	}{
		{"true", "true", []Uplink{{Interface: "eth9"}}, "uplink eth9 does not exist"},
		{"ip link set up0 down", "ip link set up0 up; ip addr replace 2001:db8::1/64 dev up0 nodad", []Uplink{{Interface: "up0"}}, "uplink up0 is down"},
		{"true", "true", []Uplink{{Interface: "lo"}}, "uplink lo is no Ethernet interface"},
		{"true", "true", []Uplink{{Interface: "up0"}, {Interface: "up0"}}, "configured twice"},
		{"ip link set up0 mtu 1321", "ip link set up0 mtu 1500", []Uplink{{Interface: "up0", Addrs: []netip.Addr{addr("192.0.2.1")}}}, "MTU of 1321, and tunnels over IPv4 need 1322"},
		{"ip link set up0 mtu 1341", "ip link set up0 mtu 1500", []Uplink{{Interface: "up0", Addrs: []netip.Addr{addr("2001:db8::1")}}}, "MTU of 1341, and tunnels over IPv6 need 1342"},
		{"true", "true", []Uplink{{Interface: "up0", Addrs: []netip.Addr{addr("192.0.2.9")}}}, "192.0.2.9, which is no address of this machine"},
		{"ip link add bare type veth peer name other; ip link set bare up addrgenmode none", "ip link del bare", []Uplink{{Interface: "bare"}}, "uplink bare has no address"},
		{"true", "true", []Uplink{{Interface: "up0", XDP: "fast"}}, `XDP mode "fast"`},
	} {
		nstest.Sh(t, c.set)
		_, err := m.start(c.uplinks...)
		if err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %q", c.set, err, c.says)
		}
		if early := CheckUplinks(c.uplinks); early != nil && early.Error() != err.Error() {
			t.Errorf("%s: %v, and checked before: %v", c.set, err, early)
		} else if early == nil && !strings.Contains(c.says, "twice") && !strings.Contains(c.says, "XDP mode") {
			t.Errorf("%s: nothing found before", c.set)
		}
		nstest.Sh(t, c.unset)
	}
	if u, err := m.start(); u != nil || err != nil {
		t.Errorf("no uplinks: %v, %v", u, err)
	}
	if have, err := m.paths.Uplinks(); err != nil || len(have) != 0 && have[0].Index != 0 {
		t.Errorf("attached: %+v, %v", have, err)
	}
}

// TestUplinksAreMended takes an uplink's ground away and gives it back.
func TestUplinksAreMended(t *testing.T) {
	m := newMachine(t)
	u, err := m.start(Uplink{Interface: "up0"})
	if err != nil {
		t.Fatal(err)
	}
	offer := u.offer()
	if fmt.Sprint(offer.Addrs) != "[192.0.2.1 2001:db8::1]" || offer.MTU != 1500 || offer.Uplinks[0].XDP != "native" || offer.Uplinks[0].Message != "" {
		t.Errorf("offered %+v", offer)
	}
	await := func(what string, good func(Underlay) bool) {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); ; {
			select {
			case <-u.underlay.Changes():
			case <-time.After(50 * time.Millisecond):
			}
			u.refresh(silent)
			if good(u.offer()) {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: %+v", what, u.offer())
			}
		}
	}
	message := func(part string) func(Underlay) bool {
		return func(o Underlay) bool {
			return strings.Contains(o.Uplinks[0].Message, part) && (part != "") == (o.Uplinks[0].Message != "")
		}
	}
	nstest.Sh(t, "ip link set up0 down")
	await("down", message("is down"))
	if o := u.offer(); len(o.Addrs) != 2 {
		t.Errorf("an uplink that is down has lost its addresses: %+v", o)
	}
	nstest.Sh(t, "ip link set up0 up; ip addr replace 2001:db8::1/64 dev up0 nodad")
	await("up again", message(""))
	m.router.Must(t, "ip link set r0 down")
	await("no carrier", message("has no carrier"))
	m.router.Must(t, "ip link set r0 up")
	await("carrier again", message(""))
	nstest.Sh(t, "ip link set up0 mtu 1300")
	await("a small MTU", message("MTU of 1300"))
	nstest.Sh(t, "ip link set up0 mtu 9000; ip addr replace 2001:db8::1/64 dev up0 nodad; ip addr add 198.51.100.7/24 dev up0")
	await("a large MTU and another address", func(o Underlay) bool {
		return o.MTU == 9000 && fmt.Sprint(o.Addrs) == "[192.0.2.1 198.51.100.7 2001:db8::1]"
	})
	have, err := m.paths.Uplinks()
	if err != nil || len(have) != 1 || len(have[0].Addrs) != 3 {
		t.Errorf("the data plane has %+v, %v", have, err)
	}

	nstest.Sh(t, "ip link del up0")
	await("gone", message("does not exist"))
	m.cable()
	await("made anew", func(o Underlay) bool { return o.Uplinks[0].Message == "" && o.Uplinks[0].XDP == "native" })
	if have, err := m.paths.Uplinks(); err != nil || len(have) != 1 || have[0].Index == 0 {
		t.Errorf("the data plane has %+v, %v", have, err)
	}
}

// TestAnUplinkThatIsTakenIsTriedAgain makes an uplink anew with a program of
// somebody else's on it. That this goes changes nothing that the kernel tells of.
func TestAnUplinkThatIsTakenIsTriedAgain(t *testing.T) {
	m := newMachine(t)
	u, err := m.start(Uplink{Interface: "up0", XDP: "native"})
	if err != nil {
		t.Fatal(err)
	}
	nstest.Sh(t, "ip link del up0")
	m.cable()
	pass, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.XDP, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}, // XDP_PASS
	})
	if err != nil {
		t.Fatal(err)
	}
	defer pass.Close()
	up0, err := net.InterfaceByName("up0")
	if err != nil {
		t.Fatal(err)
	}
	other, err := link.AttachXDP(link.XDPOptions{Program: pass, Interface: up0.Index, Flags: link.XDPDriverMode})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 6*retryUplinks)
	a := &Agent{uplinks: u, log: silent, workers: map[string]*worker{}, changed: make(chan struct{}, 1)}
	seen := make(chan string, 1) // the last message
	go func() {
		defer cancel()
		taken := false
		for ctx.Err() == nil {
			switch up := u.offer().Uplinks[0]; {
			case !taken && strings.Contains(up.Message, "cannot be used"):
				taken = true
				if err := other.Close(); err != nil {
					t.Error(err)
				}
			case taken && up.Message == "" && up.XDP == "native":
				seen <- ""
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
		seen <- fmt.Sprintf("taken: %v, now %+v", taken, u.offer())
	}()
	a.followUnderlay(ctx) // here: no other thread is in the machine
	if wrong := <-seen; wrong != "" {
		t.Error("the uplink is not taken up again:", wrong)
	}
}

// TestUplinksOfAPredecessor has one uplink fewer than before.
func TestUplinksOfAPredecessor(t *testing.T) {
	m := newMachine(t)
	nstest.Sh(t, "ip link add up1 type veth peer name r1; ip link set r1 up; ip link set up1 up; ip addr add 203.0.113.1/24 dev up1")
	if _, err := m.start(Uplink{Interface: "up0"}, Uplink{Interface: "up1", XDP: "generic"}); err != nil {
		t.Fatal(err)
	}
	if have, err := m.paths.Uplinks(); err != nil || len(have) != 2 || have[1].Mode != dataplane.Generic {
		t.Fatalf("attached %+v, %v", have, err)
	}
	m.open()
	if _, err := m.start(Uplink{Interface: "up0"}); err != nil {
		t.Fatal(err)
	}
	if have, err := m.paths.Uplinks(); err != nil || len(have) != 1 || have[0].Name != "up0" {
		t.Errorf("attached %+v, %v", have, err)
	}
	if out := nstest.Sh(t, "ip link show up1"); strings.Contains(out, "xdp") {
		t.Error("an uplink that is none any more has its program still:", out)
	}
}
