package kernel

import (
	"os"
	"testing"
)

func TestReadMemory(t *testing.T) {
	m, err := ReadMemory()
	if err != nil {
		t.Fatal(err)
	}
	if m.Kernel <= 0 || m.Kernel >= m.Total || m.Free <= 0 || m.Free > m.Total {
		t.Errorf("%+v", m)
	}
}

func TestParseMemory(t *testing.T) {
	m, err := parseMemory([]byte("MemTotal: 1000 kB\nMemFree: 300 kB\nMemAvailable: 500 kB\nBuffers: 10 kB\nCached: 90 kB\nAnonPages: 200 kB\nSReclaimable: 50 kB\nHugePages_Total: 0\n"))
	if want := (Memory{Total: 1000 << 10, Free: 500 << 10, Kernel: 350 << 10}); err != nil || m != want {
		t.Errorf("%+v, %v; want %+v", m, err, want)
	}
	for _, bad := range []string{"", "MemTotal: many kB\n"} {
		if m, err := parseMemory([]byte(bad)); err == nil {
			t.Errorf("%q: %+v", bad, m)
		}
	}
}

func TestReadFreeLists(t *testing.T) {
	n, err := ReadFreeLists()
	m, merr := ReadMemory()
	if err != nil || merr != nil || n < 0 || n > m.Total/4 {
		t.Errorf("%d bytes, %v, %v", n, err, merr)
	}
	const zones = "Node 0, zone  DMA\n  pages free     2816\n  pagesets\n    cpu: 0\n              count:    3\n              high:     19\n    cpu: 1\n              count:    4\n"
	if n, err := parseFreeLists([]byte(zones)); err != nil || n != 7*int64(os.Getpagesize()) {
		t.Errorf("%d bytes, %v", n, err)
	}
	if n, err := parseFreeLists([]byte("count: many\n")); err == nil {
		t.Errorf("%d bytes of nonsense", n)
	}
}
