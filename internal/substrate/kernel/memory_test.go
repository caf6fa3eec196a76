package kernel

import "testing"

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
