package sandbox

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"trellis/internal/substrate/shaper"
	"trellis/test/testenv"
)

// lab is a sandbox without services.
func lab(t *testing.T, hosts ...string) (Place, paths, *underlay) {
	t.Helper()
	testenv.NeedRoot(t, "makes network namespaces")
	p := Place{filepath.Join(t.TempDir(), "run"), filepath.Join(t.TempDir(), "state")}
	s := &Spec{Name: "lab", Underlay: defaultUnderlay}
	for _, h := range hosts {
		s.Hosts = append(s.Hosts, Host{Name: h})
	}
	at := p.paths(s.Name)
	t.Cleanup(func() {
		if _, err := p.Down(t.Context(), "lab", quiet); err != nil && !errors.Is(err, ErrNone) {
			t.Error(err)
		}
	})
	if err := at.begin(s); err != nil {
		t.Fatal(err)
	}
	u, err := makeUnderlay(at, s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(u.close)
	return p, at, u
}

func quiet(string, int, int) {}

// probe sends a datagram of so many bytes of IP from one host to another and
// reports how long it takes; zero if it does not arrive.
func (u *underlay) probe(t *testing.T, from, to int, k, size int) (took time.Duration, err error) {
	t.Helper()
	target := netip.AddrPortFrom(u.spec.Underlay.link(to).host[k], 9)
	var in, out *net.UDPConn
	for _, end := range []struct {
		space *space
		open  func() error
	}{
		{u.hosts[to], func() (err error) { in, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(target)); return err }},
		{u.hosts[from], func() (err error) {
			out, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(target))
			return err
		}},
	} {
		if err := end.space.do(end.open); err != nil {
			t.Fatal(err)
		}
	}
	defer in.Close()
	defer out.Close()
	raw, err := out.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	headers := 28
	if target.Addr().Is6() {
		headers = 48
	}
	if err := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
		if headers == 48 {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO)
		}
	}); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	if _, err := out.Write(make([]byte, size-headers)); err != nil {
		return 0, err
	}
	if err := in.SetReadDeadline(time.Now().Add(300 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := in.Read(make([]byte, size)); err != nil {
		// What the network says of the datagram comes with the next one.
		_, err := out.Write(make([]byte, size-headers))
		return 0, err
	}
	return time.Since(begin), nil
}

// passes fails the test unless a full packet passes, or does not, in both
// families and both ways.
func (u *underlay) passes(t *testing.T, a, b int, want bool) {
	t.Helper()
	for k := range u.spec.Underlay.link(0).host {
		for _, way := range []pair{{a, b}, {b, a}} {
			took, _ := u.probe(t, way.a, way.b, k, 1280)
			// A new interface's carrier is seen up to a second later (net/core/link_watch.c).
			for end := time.Now().Add(5 * time.Second); want && took == 0 && time.Now().Before(end); {
				took, _ = u.probe(t, way.a, way.b, k, 1280)
			}
			if (took > 0) != want {
				t.Errorf("from %s to %s a packet passes: %v, want %v", u.spec.Hosts[way.a].Name, u.spec.Underlay.link(way.b).host[k], took > 0, want)
			}
		}
	}
}

func TestHostsReachEachOtherThroughTheFabric(t *testing.T) {
	_, at, u := lab(t, "alpha", "beta", "gamma")
	u.passes(t, 0, 1, true)
	u.passes(t, 2, 1, true)
	// Made again, it stays as it is.
	again, err := makeUnderlay(at, u.spec)
	if err != nil {
		t.Fatal(err)
	}
	again.close()
	u.passes(t, 0, 1, true)
}

func TestACutStopsEveryPacketBetweenTwo(t *testing.T) {
	p, _, u := lab(t, "alpha", "beta", "gamma")
	ctx := t.Context()
	for range 2 { // what is cut can be cut
		if err := p.Cut(ctx, "", "alpha", "beta"); err != nil {
			t.Fatal(err)
		}
	}
	u.passes(t, 0, 1, false)
	u.passes(t, 0, 2, true)
	u.passes(t, 1, 2, true)
	if err := p.Cut(ctx, "lab", "gamma", ""); err != nil {
		t.Fatal(err)
	}
	u.passes(t, 0, 2, false)
	u.passes(t, 1, 2, false)
	u.wantImpairments(t, "cut from beta, gamma", "cut from alpha, gamma", "cut from alpha, beta")
	for range 2 {
		if err := p.Heal(ctx, "lab", "beta", ""); err != nil {
			t.Fatal(err)
		}
	}
	u.passes(t, 0, 1, true)
	u.passes(t, 1, 2, true)
	u.passes(t, 0, 2, false)
	u.wantImpairments(t, "cut from gamma", "", "cut from alpha")
	// What stays of it, completing the sandbox leaves alone.
	again, err := makeUnderlay(p.paths("lab"), u.spec)
	if err != nil {
		t.Fatal(err)
	}
	again.close()
	u.passes(t, 0, 2, false)
}

// wantImpairments fails the test unless the impairments of the hosts read so.
func (u *underlay) wantImpairments(t *testing.T, want ...string) {
	t.Helper()
	all, err := u.impairments()
	if err != nil {
		t.Fatal(err)
	}
	for i, tr := range all {
		if got := tr.String(); got != want[i] {
			t.Errorf("%s: %q, want %q", u.spec.Hosts[i].Name, got, want[i])
		}
	}
}

func TestANarrowPathRefusesLongPackets(t *testing.T) {
	p, at, u := lab(t, "alpha", "beta", "gamma")
	ctx := t.Context()
	for _, step := range []struct {
		host string
		mtu  int
	}{{"alpha", 1400}, {"beta", 1350}} {
		if err := p.Narrow(ctx, "", step.host, step.mtu); err != nil {
			t.Fatal(err)
		}
	}
	u.wantImpairments(t, "MTU 1400", "MTU 1350", "")
	for _, way := range []struct{ from, to, mtu int }{{0, 2, 1400}, {2, 0, 1400}, {1, 0, 1350}, {0, 1, 1350}, {2, 1, 1350}} {
		for k := range 2 {
			what := fmt.Sprintf("from %d to %d in family %d", way.from, way.to, k)
			if took, err := u.probe(t, way.from, way.to, k, way.mtu+1); took > 0 || !errors.Is(err, unix.EMSGSIZE) {
				t.Errorf("%s: a packet of %d bytes took %v, %v; want %v", what, way.mtu+1, took, err, unix.EMSGSIZE)
			}
			if took, err := u.probe(t, way.from, way.to, k, way.mtu); took == 0 {
				t.Errorf("%s: a packet of %d bytes: %v", what, way.mtu, err)
			}
		}
	}
	again, err := makeUnderlay(at, u.spec)
	if err != nil {
		t.Fatal(err)
	}
	again.close()
	u.wantImpairments(t, "MTU 1400", "MTU 1350", "")
	if err := p.Cut(ctx, "", "beta", "gamma"); err != nil {
		t.Fatal(err)
	}
	if err := p.Heal(ctx, "", "", ""); err != nil {
		t.Fatal(err)
	}
	u.wantImpairments(t, "", "", "")
	for i, s := range u.hosts { // they remember what they were told for ten minutes
		if err := s.do(func() error {
			return errors.Join(exec.Command("ip", "route", "flush", "cache").Run(), exec.Command("ip", "-6", "route", "flush", "cache").Run())
		}); err != nil {
			t.Fatal(err)
		}
		if took, err := u.probe(t, i, (i+1)%3, 0, 1500); took == 0 {
			t.Errorf("a packet of 1500 bytes after all was healed: %v", err)
		}
	}
	for _, mtu := range []int{1279, 1501} {
		if err := p.Narrow(ctx, "", "alpha", mtu); err == nil {
			t.Errorf("an MTU of %d was accepted", mtu)
		}
	}
}

func TestADelayIsForThoseTwoAlone(t *testing.T) {
	p, _, u := lab(t, "alpha", "beta", "gamma")
	ctx := t.Context()
	if netem, err := shaper.Supported(); err != nil {
		t.Fatal(err)
	} else if !netem {
		if err := p.Delay(ctx, "", "alpha", "beta", time.Second); err == nil {
			t.Error("a delay was accepted, and the kernel has no netem")
		}
		t.Skip("needs netem")
	}
	if err := p.Delay(ctx, "", "alpha", "beta", 40*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	u.wantImpairments(t, "delayed 40ms from beta", "delayed 40ms from alpha", "")
	for k := range 2 {
		for _, way := range []pair{{0, 1}, {1, 0}} {
			if took, err := u.probe(t, way.a, way.b, k, 1280); took < 40*time.Millisecond {
				t.Errorf("between those two a packet takes %v, %v", took, err)
			}
		}
		if took, err := u.probe(t, 2, 0, k, 1280); took == 0 || took >= 40*time.Millisecond {
			t.Errorf("between others a packet takes %v, %v", took, err)
		}
	}
	if err := p.Heal(ctx, "", "alpha", ""); err != nil {
		t.Fatal(err)
	}
	u.wantImpairments(t, "", "", "")
	u.passes(t, 0, 1, true)
}

func TestHostsThatAreNotThereAreRefused(t *testing.T) {
	p, _, _ := lab(t, "alpha", "beta")
	ctx := t.Context()
	for want, err := range map[string]error{
		`sandbox lab has no host "betta"; did you mean "beta"?`:                                  p.Cut(ctx, "", "alpha", "betta"),
		`sandbox lab has no host "x"; its hosts are alpha, beta`:                                 p.Heal(ctx, "", "x", ""),
		`nothing of the underlay is between beta and itself; name two hosts`:                     p.Cut(ctx, "", "beta", "beta"),
		`there is no sandbox "other"; there is lab`:                                              p.Cut(ctx, "other", "alpha", "beta"),
		`sandbox lab has no host "z"; its hosts are alpha, beta, and between them is the fabric`: p.Exec("", "z", []string{"true"}, exec.LookPath),
	} {
		if err == nil || err.Error() != want {
			t.Errorf("error %v, want %s", err, want)
		}
	}
}

// TestDownRemovesWhatIsHalfMade removes a sandbox of which anything may be
// missing, with a process in each of its namespaces.
func TestDownRemovesWhatIsHalfMade(t *testing.T) {
	for name, spoil := range map[string]func(*testing.T, paths){
		"whole":            func(*testing.T, paths) {},
		"without a record": func(t *testing.T, at paths) { must(t, os.Remove(at.record())) },
		"a torn record":    func(t *testing.T, at paths) { must(t, os.WriteFile(at.record(), []byte("{"), 0o600)) },
		"no fabric":        func(t *testing.T, at paths) { must(t, unpin(at.pin(fabric))) },
		"an empty pin": func(t *testing.T, at paths) {
			must(t, unpin(at.pin("alpha")))
			must(t, os.WriteFile(at.pin("alpha"), nil, 0o600))
		},
		"no state": func(t *testing.T, at paths) { must(t, os.RemoveAll(at.state)) },
		"no run directory": func(t *testing.T, at paths) {
			for _, space := range []string{"alpha", "beta", fabric} {
				must(t, unpin(at.pin(space)))
			}
			must(t, os.RemoveAll(at.run))
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, at, u := lab(t, "alpha", "beta")
			must(t, os.MkdirAll(filepath.Join(at.runOf("beta"), "bpf"), 0o700))
			must(t, unix.Mount("tmpfs", filepath.Join(at.runOf("beta"), "bpf"), "tmpfs", 0, ""))
			stray := exec.Command("sleep", "60")
			must(t, u.hosts[1].do(stray.Start))
			ended := make(chan error, 1)
			go func() { ended <- stray.Wait() }()
			if name == "no run directory" { // as after the machine has started anew
				must(t, unix.Unmount(filepath.Join(at.runOf("beta"), "bpf"), 0))
				must(t, stray.Process.Kill())
			}
			spoil(t, at)
			gone, err := p.Down(t.Context(), "", quiet)
			if err != nil || gone != "lab" {
				t.Fatalf("down of %q: %v", gone, err)
			}
			select {
			case <-ended:
			case <-time.After(5 * time.Second):
				t.Error("a process of the sandbox lives")
				stray.Process.Kill()
			}
			for _, dir := range []string{p.RunDir, p.StateDir} {
				if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
					t.Errorf("left in %s: %v, %v", dir, entries, err)
				}
			}
			if _, err := p.Down(t.Context(), "", quiet); !errors.Is(err, ErrNone) {
				t.Errorf("down of nothing: %v", err)
			}
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
