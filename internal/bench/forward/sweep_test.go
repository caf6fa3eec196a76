package forward

import (
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"trellis/test/testenv"
)

func TestSweep(t *testing.T) {
	testenv.NeedRoot(t, "makes network namespaces")
	core, err := lastCore()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := secondCore(core); err != nil {
		t.Skip(err)
	}
	nothingLeft(t)
	for _, name := range []string{VethMirred, EGREFast + "-x3", UserXDP} {
		config, err := lookUp(name)
		if err != nil {
			t.Fatal(err)
		}
		s, err := sweep(t.Context(), config, core, Scenario{Size: MinSize}, 20*time.Millisecond, true, func(string) {})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		t.Logf("%s: saturation %.0f kpps, no drop %.0f, half a percent %.0f, CPU %v", name, s.Saturation, s.NoDrop.Kpps, s.HalfPercent.Kpps, s.CPU)
		if len(s.Points) != len(loads) || s.Saturation <= 0 || s.NoDrop.Loss > 0 || s.HalfPercent.Loss > allowed || s.NoDrop.Missing > 0 {
			t.Errorf("%s: %+v", name, s)
		}
		for i, p := range s.Points {
			t.Logf("  %4g: offered %7.0f kpps, loss %.4f, %d missing, %d late, 50 %% in %.0f ns, 99 %% in %.0f, by %v", loads[i], p.Offered, p.Loss, p.Missing, p.Late, p.Latency.P50, p.Latency.P99, p.ArrivedBy)
			if p.Arrived == 0 || p.Arrived > p.Sent || p.Kpps > p.Offered || p.Latency.P50 <= 0 || p.Latency.P50 > p.Latency.P99 || p.Missing > p.Sent-p.Arrived {
				t.Errorf("%s, load %v: %+v", name, loads[i], p)
			}
			if (len(p.ArrivedBy) == 3) != (config.sides == 3) {
				t.Errorf("%s: by routers %v", name, p.ArrivedBy)
			}
		}
		// A generator that is held up by others falls behind its pace, and never
		// runs ahead of it.
		if p := s.Points[1]; p.Offered > 1.3*loads[1]*s.Saturation {
			t.Errorf("%s: offered %v kpps instead of %v", name, p.Offered, loads[1]*s.Saturation)
		}
		sum := 0.0
		for _, c := range s.CPU {
			sum += c.Share
		}
		if math.Abs(sum-1) > 1e-9 {
			t.Errorf("%s: shares are %v in all", name, sum)
		}
	}
}

func TestPoint(t *testing.T) {
	p := Point{Sent: 1001}
	p.finish(&sinkSeen{Frames: 900}, []sinkRouter{{Frames: 600, Missing: 1, Late: 2}, {Frames: 300, Missing: 99}}, make([]uint64, latencyBuckets), 1e6)
	if p.Offered != 1000 || math.Abs(p.Loss-101.0/1001) > 1e-12 || math.Abs(p.Kpps-1000*900.0/1001) > 1e-9 || p.Missing != 100 || p.Late != 2 || math.Abs(p.Fairness-0.9) > 1e-12 {
		t.Errorf("%+v", p)
	}
}

func TestParts(t *testing.T) {
	for name, want := range map[string]string{
		"bpf_prog_6deef7357e7b4530_sink": "sink", "bpf_prog_0123456789abcdef_node_in": "BPF programs", "veth_poll": "veth", "br_handle_frame": "bridge",
		"fib_table_lookup": "FIB and neighbours", "ip_forward": "IP stack", "pv_native_safe_halt": "idle", "dev_map_enqueue": "XDP", "xyzzy": otherPart,
		"bpf_prog_": "BPF's maps and helpers",
	} {
		if got := partOf(name); got != want {
			t.Errorf("%s is part of %q, want %q", name, got, want)
		}
	}
	symbols, err := readSymbols(strings.NewReader("ffffffff81000200 T ip_forward\nffffffff81000000 t veth_poll\nffffffff81000100 D data\nffffffffc0000000 t br_x\t[bridge]\n"))
	if err != nil {
		t.Fatal(err)
	}
	got := shares([]uint64{0xffffffff81000010, 0xffffffff81000200, 0xffffffff81000001, 0x400000, 0xffffffffc0000009, 0xffff000000000000, 0xffffffff810001ff, 0xffffffff81000000}, symbols)
	want := []Share{{"veth", 0.5}, {"IP stack", 0.125}, {"bridge", 0.125}, {"other", 0.125}, {"user space", 0.125}}
	if !slices.Equal(got, want) {
		t.Errorf("shares are %v, want %v", got, want)
	}
	if _, err := readSymbols(strings.NewReader("0000000000000000 T ip_forward\n")); err == nil || !strings.Contains(err.Error(), "kptr_restrict") {
		t.Errorf("hidden symbols: %v", err)
	}
}

func TestParseSamples(t *testing.T) {
	record := func(kind uint32, size uint16, ip uint64) []byte {
		b := binary.NativeEndian.AppendUint32(nil, kind)
		b = binary.NativeEndian.AppendUint16(b, 0)
		b = binary.NativeEndian.AppendUint16(b, size)
		return append(binary.NativeEndian.AppendUint64(b, ip), make([]byte, max(0, int(size)-16))...)
	}
	data := slices.Concat(record(unix.PERF_RECORD_SAMPLE, 16, 7), record(unix.PERF_RECORD_LOST, 24, 1), record(unix.PERF_RECORD_SAMPLE, 16, 9), record(unix.PERF_RECORD_SAMPLE, 16, 11))
	if got := parseSamples(data, uint64(len(data)-16)); !slices.Equal(got, []uint64{7, 9}) {
		t.Errorf("samples are %v", got)
	}
	if got := parseSamples(make([]byte, 32), 32); len(got) != 0 {
		t.Errorf("without records there are %v", got)
	}
}

func TestMissing(t *testing.T) {
	var lack *MissingError
	if err := missing(unix.EOPNOTSUPP, "GRE devices", "load ip_gre"); !errors.As(err, &lack) || !strings.Contains(err.Error(), "no GRE devices") || !strings.Contains(err.Error(), "load ip_gre") {
		t.Errorf("what the kernel lacks is %v", err)
	}
	if err := missing(unix.EPERM, "GRE devices", ""); errors.As(err, &lack) {
		t.Error("what is not permitted is said to be missing")
	}
	if missing(nil, "", "") != nil {
		t.Error("nothing is missing, and an error")
	}
}
