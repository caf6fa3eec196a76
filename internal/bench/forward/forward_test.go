package forward

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	trellisv1 "trellis/api/trellis/v1"
	"trellis/internal/bench"
	"trellis/internal/substrate/netns"
	"trellis/test/testenv"
)

// namespaces counts the network namespaces that this process's threads hold.
func namespaces(t *testing.T) int {
	t.Helper()
	tasks, err := filepath.Glob("/proc/self/task/*/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, task := range tasks {
		if name, err := os.Readlink(task); err == nil { // else the thread has ended
			seen[name] = true
		}
	}
	return len(seen)
}

// nothingLeft checks at the test's end that all namespaces are gone: with them
// goes everything else.
func nothingLeft(t *testing.T) {
	t.Helper()
	before := namespaces(t)
	t.Cleanup(func() {
		for deadline := time.Now().Add(5 * time.Second); namespaces(t) > before; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%d network namespaces are left, there were %d", namespaces(t), before)
			}
		}
	})
}

func TestEveryConfigurationForwards(t *testing.T) {
	testenv.Measures(t)
	testenv.NeedRoot(t, "makes network namespaces")
	nothingLeft(t)
	for _, tc := range []struct {
		sizes   []Size
		configs []string
	}{
		{[]Size{MinSize}, append(Names(), "chain-3", "shortbridge-3", VethRouted+"-x1", VethBridge+"-x3", VethRouted+"-x3", EGREStack+"-x3", EGREFast+"-x3")},
		{[]Size{MaxSize}, []string{VXLANMirred, Shortbridge, EGREStack, EGREFast, UserPacket, UserXDP}},
		{[]Size{IMIX}, []string{Native, VXLANMirred, EGREStack, EGREFast, UserXDP, EGREFast + "-x2"}},
	} {
		report, err := Run(t.Context(), Config{Configs: tc.configs, Sizes: tc.sizes, Repeat: 3, Length: 20 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range report.Skipped {
			t.Logf("%s is skipped: %s", s.Config, s.Reason)
			tc.configs = slices.DeleteFunc(slices.Clone(tc.configs), func(name string) bool { return name == s.Config })
		}
		if len(report.Rows) != len(tc.configs) || len(report.Generator) != len(generators) {
			t.Fatalf("%d and %d rows for %d configurations", len(report.Rows), len(report.Generator), len(tc.configs))
		}
		generator := report.Generator[0]
		for _, g := range report.Generator {
			if g.NSWithoutGenerator != 0 || g.NS <= 0 || g.RatioToNative <= 0 {
				t.Errorf("%s by itself: %+v", g.Config, g)
			}
		}
		for i, r := range report.Rows {
			t.Logf("%-16s %4v: %5.0f ns, %.2f of native, loss %.4f", r.Config, r.Size, r.NS, r.RatioToNative, r.Loss)
			n := r.Rounds[0]
			if r.Config != tc.configs[i] || r.Size != tc.sizes[0] {
				t.Errorf("row %d is of %s, %v bytes", i, r.Config, r.Size)
			}
			if n.Sent < shortest || n.Arrived > n.Sent || r.Loss > 0.5 {
				t.Errorf("%s: of %d frames %d arrived", r.Config, n.Sent, n.Arrived)
			}
			if r.Routers > 0 && (len(n.ArrivedBy) != r.Routers || r.Routers > 1 && r.Fairness < 0.99) {
				t.Errorf("%s: by its routers %v arrived, fairness %v", r.Config, n.ArrivedBy, r.Fairness)
			}
			// No path is free, nor as fast as no path.
			if r.NS <= generator.NS || r.NS > 1e6 || r.RatioToNative <= 0 || (r.Config == Native) != (r.RatioToNative == 1) {
				t.Errorf("%s: %+v beside a generator of %v ns", r.Config, r, generator.NS)
			}
		}
	}
}

// mustRig builds a configuration and waits until it forwards.
func mustRig(t *testing.T, name string) *rig {
	t.Helper()
	testenv.NeedRoot(t, "makes network namespaces")
	nothingLeft(t)
	config, err := lookUp(name)
	if err != nil {
		t.Fatal(err)
	}
	core, err := lastCore()
	if err != nil {
		t.Fatal(err)
	}
	r, err := newRig(config, core, Scenario{Size: MinSize})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.close(); err != nil {
			t.Error(err)
		}
	})
	c := &contender{config: config, rig: r}
	if err := c.ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	return r
}

func TestRouterThatStopsIsAnError(t *testing.T) {
	testenv.Measures(t)
	r := mustRig(t, VethMirred)
	err := r.routers[0].Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("0"), 0) })
	if err != nil {
		t.Fatal(err)
	}
	c := &contender{rig: r}
	if err := c.ready(t.Context()); err == nil || !strings.Contains(err.Error(), "forwards nothing") {
		t.Errorf("a router that does not forward is ready, with the error %v", err)
	}
}

// The sink must tell a frame from the right one, and say how it differs.
func TestWrongFramesDoNotCount(t *testing.T) {
	testenv.Measures(t)
	for _, tc := range []struct {
		config, want string
		spoil        func(*rig) error
	}{
		{Native, "byte 5 is", func(r *rig) error { // the router sends to another neighbour
			return r.root.Do(func() error {
				mac := sinkMAC
				mac[5]++
				return neighbour(outCard, sinkHost, mac)
			})
		}},
		{generatorOnly, "its length is", func(r *rig) error { r.meter.kinds[0].send.len++; return nil }},
	} {
		t.Run(tc.config, func(t *testing.T) {
			r := mustRig(t, tc.config)
			if err := tc.spoil(r); err != nil {
				t.Fatal(err)
			}
			s, err := r.meter.run(batch)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%d of %d frames arrived, with the error %v", s.arrived, s.sent, err)
			}
		})
	}
}

// Each frame is written anew, so a long run ends with frames like its first.
func TestEveryFrameArrivesOnce(t *testing.T) {
	testenv.Measures(t)
	r := mustRig(t, Native)
	s, err := r.meter.run(1 << 17)
	if err != nil {
		t.Fatal(err)
	}
	if s.sent != 1<<17 || s.arrived > s.sent || s.arrived < s.sent/2 || s.ns <= 0 {
		t.Errorf("of %d frames, %d arrived, one in %v ns", s.sent, s.arrived, s.ns)
	}
}

func TestFramesOnAnotherCoreAreAnError(t *testing.T) {
	testenv.Measures(t)
	r := mustRig(t, Native)
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		t.Fatal(err)
	}
	if set.Count() < 2 {
		t.Skip("needs two cores")
	}
	set.Clear(r.core)
	if err := r.outside.Do(func() error { return unix.SchedSetaffinity(0, &set) }); err != nil {
		t.Fatal(err)
	}
	if s, err := r.meter.run(batch); err == nil || !strings.Contains(err.Error(), "another core") {
		t.Errorf("%d frames arrived, with the error %v", s.arrived, err)
	}
}

func TestInterruptLeavesNothing(t *testing.T) {
	testenv.Measures(t)
	testenv.NeedRoot(t, "makes network namespaces")
	nothingLeft(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	report, err := Run(ctx, Config{
		Configs: []string{Shortbridge}, Sizes: []Size{MinSize}, Repeat: 1000, Length: 10 * time.Millisecond,
		Progress: func(p *trellisv1.Progress) {
			if p.GetPhase() == "measuring" {
				cancel()
			}
		},
	})
	if !errors.Is(err, context.Canceled) || len(report.Rows) != 0 {
		t.Errorf("an interrupted run ends with %v and %d rows", err, len(report.Rows))
	}
}

// Everything is in the namespaces of the bench: the machine's sees nothing of it.
func TestMachineIsNotTouched(t *testing.T) {
	testenv.Measures(t)
	r := mustRig(t, Shortbridge)
	for _, device := range []string{genDevice, inCard, outCard, inPort(0)} {
		if _, err := os.Stat("/sys/class/net/" + device); err == nil {
			t.Errorf("the machine has a device %s", device)
		}
	}
	if _, err := netns.OfPid(os.Getpid()); err == nil {
		t.Error("the process's first thread is in another namespace than the rest")
	}
	err := r.root.Do(func() error {
		var s unix.Statfs_t
		if err := unix.Statfs("/run/bpf", &s); err != nil {
			return err
		}
		if s.Type != unix.BPF_FS_MAGIC {
			t.Errorf("/run/bpf of the root space is of type %#x", s.Type)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if _, err := os.Stat("/run/bpf"); err == nil {
		t.Error("the machine has a /run/bpf")
	}
}

func TestNames(t *testing.T) {
	for _, name := range append(Standard(), "chain-1", "chain-60", "shortbridge-2") {
		if err := Check(name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, name := range []string{"", "nativ", "chain-", "chain-0", "chain-61", "chain-01", "chain-+1", "chain-x", "shortbridge-0", "shortbridge-x", generatorOnly, generatorEGRE} {
		err := Check(name)
		if err == nil {
			t.Errorf("%q is a configuration", name)
			continue
		}
		if !strings.HasPrefix(name, "chain-") && !strings.HasPrefix(name, "shortbridge-") {
			for _, known := range Names() {
				if !strings.Contains(err.Error(), known) {
					t.Errorf("%q is refused without naming %s: %v", name, known, err)
				}
			}
		}
	}
}

func TestSummary(t *testing.T) {
	r := Row{Config: Shortbridge, Size: 64}
	for _, ns := range []float64{1000, 500, 800} {
		r.add(sample{sent: 1000, arrived: uint64(ns), ns: ns}, 100, 400)
	}
	r.summarize()
	if r.Kpps != 1250 || r.NS != 800 || r.NSWithoutGenerator != 700 || r.RatioToNative != 0.5 || r.Spread != 0.8 || r.Loss != 0.2 {
		t.Errorf("summary is %+v", r)
	}
}

func testReport() Report {
	row := func(config string, ns float64) Row {
		r := Row{Config: config, Size: 64}
		r.add(sample{sent: 4096, arrived: 4096, ns: ns}, 100, 400)
		r.add(sample{sent: 4096, arrived: 3072, ns: ns}, 100, 400)
		r.summarize()
		return r
	}
	return Report{
		Bench: "forward", Seconds: 1, Repeat: 2, Core: 1, Rows: []Row{row(Native, 400), row(Shortbridge, 800)}, Generator: []Row{row(generatorOnly, 100)}, Skipped: []Skipped{{Config: GREInside, Reason: "the kernel has no GRE devices"}},
		Sweeps: []Sweep{{
			Config: EGREFast + "-x2", Size: IMIX, Routes: 1, Flows: 2, Routers: 2, Saturation: 1000, CPU: []Share{{"veth", 0.5}},
			Points: []Point{{Offered: 10, Kpps: 9, Sent: 20, Arrived: 18, Missing: 2, Late: 1, Loss: 0.1, Latency: Latency{1, 2, 3, 4}, ArrivedBy: []uint64{9, 9}, Fairness: 1}},
		}},
		Machine: bench.Machine{CPU: "Z80", Cores: 2, Memory: 65536, Kernel: "6.6", Arch: "amd64", System: "Debian", Versions: map[string]string{"crun": "1"}, Time: time.Unix(0, 0).UTC()},
	}
}
