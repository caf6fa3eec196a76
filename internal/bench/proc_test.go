package bench

import (
	"math"
	"os"
	"testing"
)

func TestParseStat(t *testing.T) {
	//            user nice system idle iowait irq softirq steal guest guest_nice
	got, err := parseStat("cpu  1000 200 300 9999 8888 40 5 777 60 7\ncpu0 1 2 3 4 5 6 7 8 9 10\n", busyColumns)
	if err != nil || math.Abs(got-15.45) > 1e-9 {
		t.Errorf("busy time is %v, %v; want 15.45: idle, waiting, stolen and guest time do not count", got, err)
	}
	for _, bad := range []string{"", "cpu 1 2", "intr 1 2 3 4 5 6 7 8", "cpu a b c d e f g h"} {
		if got, err := parseStat(bad, busyColumns); err == nil {
			t.Errorf("parseStat(%q, busyColumns) = %v without an error", bad, got)
		}
	}
}

func TestParseProcessStat(t *testing.T) {
	const stat = "42 (a ) b (c) S 1 42 42 0 -1 4194560 1 2 3 4 110 220 330 440 20 0 9 0 100 1000 10"
	got, err := parseProcessStat(stat)
	if err != nil || math.Abs(got-11) > 1e-9 {
		t.Errorf("time is %v, %v; want 11", got, err)
	}
	for _, bad := range []string{"", "42 (x) S 1 2 3"} {
		if got, err := parseProcessStat(bad); err == nil {
			t.Errorf("parseProcessStat(%q) = %v without an error", bad, got)
		}
	}
}

func TestOwnProcess(t *testing.T) {
	before, err := ProcessCPU(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	x := 0.0
	after := before
	for i := 0; after-before < 0.05; i++ {
		for j := range 1_000_000 {
			x += math.Sqrt(float64(i + j))
		}
		if after, err = ProcessCPU(os.Getpid()); err != nil {
			t.Fatal(err)
		}
	}
	rss, err := ProcessRSS(os.Getpid())
	if err != nil || rss < 1<<20 || rss > 4<<30 {
		t.Errorf("this process's memory is %d bytes, %v (%v)", rss, err, x)
	}
}

func TestReadMachine(t *testing.T) {
	m, err := ReadMachine(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	free, err := AvailableMemory()
	if err != nil {
		t.Fatal(err)
	}
	if m.CPU == "" || m.Cores < 1 || m.Kernel == "" || m.Memory < 64<<20 || free <= 0 || free > m.Memory {
		t.Errorf("this machine is described as %+v, %d bytes free", m, free)
	}
}

func TestCPUModel(t *testing.T) {
	for info, want := range map[string]string{
		"processor\t: 0\nmodel\t\t: 2\nmodel name\t: AMD EPYC\n": "AMD EPYC",
		"processor\t: 0\nCPU implementer\t: 0x41\n":              "0x41",
		"": "unknown",
	} {
		if got := cpuModel(info); got != want {
			t.Errorf("cpuModel(%q) = %q, want %q", info, got, want)
		}
	}
}
