package softirq

import (
	"encoding/binary"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"trellis/test/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

const stat = `cpu  100 0 50 800 10 0 40 0 0 0
cpu0 50 0 25 400 5 0 20 0 0 0
cpu1 50 0 25 400 5 0 20 0 0 0
intr 12345 0 0
`

func TestParseStat(t *testing.T) {
	got, err := parseStat([]byte(stat))
	if want := []cpuTime{{20, 500}, {20, 500}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
	for _, bad := range []string{"", "intr 1\n", "cpu0 1 2\n", "cpu0 a b c d e f g h\n"} {
		if got, err := parseStat([]byte(bad)); err == nil {
			t.Errorf("%q: %v", bad, got)
		}
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte(stat))
	f.Fuzz(func(t *testing.T, b []byte) {
		if cpus, err := parseStat(b); err == nil && len(cpus) == 0 {
			t.Error("no CPU, and no error")
		}
	})
}

func TestMeter(t *testing.T) {
	m, err := NewMeter()
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for range 2 {
		shares, err := m.Read()
		if err != nil || len(shares) == 0 {
			t.Fatalf("%v, %v", shares, err)
		}
		for _, s := range shares {
			if s < 0 || s > 1 {
				t.Errorf("a share of %v", s)
			}
		}
	}
}

// TestProfile sends packets between the ends of a veth pair: all the same, as where
// they circle, and each another.
func TestProfile(t *testing.T) {
	testenv.Measures(t)
	testenv.NeedRoot(t, "makes a network namespace")
	p, err := OpenProfiler()
	if err != nil {
		t.Skipf("this kernel cannot trace packets: %v", err)
	}
	defer p.Close()
	ns := testenv.NewNetNS(t)
	ns.IPBatch(t, "link add v0 type veth peer name v1", "link set v0 up", "link set v1 up")
	info, err := os.Stat(ns.Path())
	if err != nil {
		t.Fatal(err)
	}
	inode := info.Sys().(*syscall.Stat_t).Ino
	var index map[string]int
	var fd int
	if err := ns.Do(func() (err error) {
		index = map[string]int{}
		for _, name := range []string{"v0", "v1"} {
			nic, err := net.InterfaceByName(name)
			if err != nil {
				return err
			}
			index[name] = nic.Index
		}
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	received := func() (n uint64) {
		t.Helper()
		if err := ns.Do(func() error {
			b, err := os.ReadFile("/proc/thread-self/net/dev")
			_, line, _ := strings.Cut(string(b), "v1:")
			if f := strings.Fields(line); len(f) > 1 {
				n, err = strconv.ParseUint(f[1], 10, 64)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return n
	}
	const count = 5000
	sent := received()
	await := func() {
		for deadline := time.Now().Add(20 * time.Second); received() < sent && time.Now().Before(deadline); {
			time.Sleep(time.Millisecond)
		}
	}
	send := func(same bool) Use {
		t.Helper()
		uses, err := p.Profile(func() {
			frame := make([]byte, 100)
			copy(frame, "\x02\x02\x02\x02\x02\x02\x02\x00\x00\x00\x00\x01\x88\xb5")
			for i := range count {
				// The kernel drops what does not fit in its queue (net.core.netdev_max_backlog).
				if i%100 == 0 {
					await()
				}
				sent++
				if !same {
					binary.BigEndian.PutUint32(frame[20:], uint32(i))
				}
				if err := unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: index["v0"]}); err != nil {
					t.Error(err)
					return
				}
			}
			await()
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, u := range uses {
			if u.Netns == inode && u.Ifindex == index["v1"] {
				return u
			}
		}
		t.Fatalf("no packet of the namespace %d was counted: %+v", inode, uses)
		return Use{}
	}
	// The kernel's own packets, of neighbour discovery, may be among them.
	if u := send(true); u.Packets < count || u.Time <= 0 || u.Samples == 0 || u.Repeats < 10*u.Samples {
		t.Errorf("of %d packets that are the same: %+v", count, u)
	}
	if u := send(false); u.Packets < count || u.Samples == 0 || u.Repeats > u.Samples {
		t.Errorf("of %d packets that differ: %+v", count, u)
	}
}
