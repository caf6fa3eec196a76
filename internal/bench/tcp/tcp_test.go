package tcp

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"trellis/internal/bench"
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

func TestStreamsPassEveryKindOfLink(t *testing.T) {
	testenv.Measures(t)
	testenv.NeedRoot(t, "makes network namespaces")
	before := namespaces(t)
	report, err := Run(t.Context(), Config{Routers: []int{0, 2}, Length: time.Second, Repeat: 1})
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Cases) != 2 {
		t.Fatalf("%d cases, want 2", len(report.Cases))
	}
	for _, c := range report.Cases {
		for _, k := range kinds {
			if s := c.Summary[k]; s.Samples != 1 || s.Min < 0.01 || s.Max > 1000 {
				t.Errorf("%d routers, %s: %+v Gbit/s", c.Routers, k, s)
			}
		}
		for _, k := range []Kind{Veth, VethNoOffload} {
			if c.Ratio[k].Samples != 1 || c.Ratio[k].Min <= 0 {
				t.Errorf("%d routers: ratio to %s is %+v", c.Routers, k, c.Ratio[k])
			}
		}
	}
	for deadline := time.Now().Add(5 * time.Second); namespaces(t) > before; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d network namespaces are left, there were %d", namespaces(t), before)
		}
	}
}

func TestPathsDifferInOffloadAlone(t *testing.T) {
	testenv.Measures(t)
	testenv.NeedRoot(t, "makes network namespaces")
	for kind, want := range map[Kind]bool{Shortbridge: true, Veth: true, VethNoOffload: false} {
		p, err := newPath(1, kind)
		if err != nil {
			t.Fatal(err)
		}
		for i, n := range p.plan.Nodes {
			for _, q := range n.Ports {
				err := p.nodes[i].Do(func() error {
					on, err := bench.SegmentationOffload(q.Name)
					if err == nil && on != want {
						t.Errorf("%s: segmentation offload of %s:%s is %v", kind, n.Name, q.Name, on)
					}
					return err
				})
				if err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := p.close(); err != nil {
			t.Error(err)
		}
	}
}

func TestBrokenPathIsAnError(t *testing.T) {
	testenv.Measures(t)
	testenv.NeedRoot(t, "makes network namespaces")
	p, err := newPath(1, Veth)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.close(); err != nil {
			t.Error(err)
		}
	}()
	defer func(d time.Duration) { ioTimeout = d }(ioTimeout)
	ioTimeout = time.Second
	// The router stops forwarding.
	if err := p.nodes[1].Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("0"), 0) }); err != nil {
		t.Fatal(err)
	}
	from, to, address, err := p.ends()
	if err != nil {
		t.Fatal(err)
	}
	if rate, err := stream(t.Context(), from, to, address, 100*time.Millisecond); err == nil {
		t.Errorf("a stream of %v Gbit/s passes a router that does not forward", rate)
	}
}

func TestNothingIsLeftInTheRootContext(t *testing.T) {
	testenv.Measures(t)
	testenv.NeedRoot(t, "makes network namespaces")
	p, err := newPath(0, Shortbridge)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.close(); err != nil {
			t.Error(err)
		}
	}()
	// The bpffs is in the root space's own /run, not in the machine's.
	if _, err := os.Stat("/run/bpf"); err == nil {
		t.Error("the machine has a /run/bpf")
	}
	err = p.root.Do(func() error {
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
}

func TestReportJSON(t *testing.T) {
	r := Result{Routers: 1, Samples: map[Kind][]float64{Shortbridge: {16, 18, 20}, VethNoOffload: {8, 6, 5}, Veth: {16, 12, 10}}}
	r.summarize()
	report := Report{
		Bench: "tcp", MTU: 1500, Seconds: 2, Repeat: 3, Cases: []Result{r},
		Machine: bench.Machine{CPU: "Z80", Cores: 1, Memory: 65536, Kernel: "6.6", Arch: "amd64", System: "Debian", Versions: map[string]string{"crun": "1"}, Time: time.Unix(0, 0).UTC()},
	}
	got, err := json.MarshalIndent(report, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "testdata/report.json", append(got, '\n'))
}

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares text with a file.
func golden(t *testing.T, path string, got []byte) {
	t.Helper()
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
