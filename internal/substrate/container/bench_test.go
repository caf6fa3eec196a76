package container

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"trellis/test/testenv"
)

// TestMany starts, adopts and removes TRELLIS_MANY nodes, with a CPU limit of
// TRELLIS_CPU each, and prints what it costs.
func TestMany(t *testing.T) {
	testenv.Measures(t)
	n, err := strconv.Atoi(os.Getenv("TRELLIS_MANY"))
	if err != nil {
		t.Skip("set TRELLIS_MANY to a number of nodes")
	}
	testenv.NeedRoot(t, "makes containers")
	r, err := New(Config{Runtime: os.Getenv("TRELLIS_RUNTIME"), RunDir: t.TempDir(), StateDir: t.TempDir(), Instance: "many"})
	if err != nil {
		t.Fatal(err)
	}
	ids := make([]ID, n)
	cpu := func() time.Duration {
		var self, kids syscall.Rusage
		syscall.Getrusage(syscall.RUSAGE_SELF, &self)
		syscall.Getrusage(syscall.RUSAGE_CHILDREN, &kids)
		d := time.Duration(0)
		for _, v := range []syscall.Timeval{self.Utime, self.Stime, kids.Utime, kids.Stime} {
			d += time.Duration(v.Nano())
		}
		return d
	}
	limits := Limits{Memory: 96 << 20, Pids: 256, Disk: 64 << 20}
	if limits.CPU, err = strconv.ParseFloat(os.Getenv("TRELLIS_CPU"), 64); err != nil {
		limits.CPU = 0
	}
	c0, t0 := cpu(), time.Now()
	var wg sync.WaitGroup
	sem := make(chan struct{}, 8)
	lastCPU, last := c0, t0
	for i := range n {
		if tenth := max(1, n/10); i > 0 && i%tenth == 0 {
			c, now := cpu(), time.Now()
			t.Logf("nodes %d to %d: %.1f nodes/s, CPU %v each", i-tenth, i, float64(tenth)/now.Sub(last).Seconds(), (c-lastCPU)/time.Duration(tenth))
			lastCPU, last = c, now
		}
		ids[i] = ID{"many", fmt.Sprintf("n%d", i)}
		sem <- struct{}{}
		wg.Go(func() {
			defer func() { <-sem }()
			h, err := r.Start(context.Background(), Spec{ID: ids[i], IDBase: 1 << 20, Image: "host",
				Limits: limits})
			if err == nil {
				err = h.Release()
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	t.Logf("%d started in %v, CPU %v each", n, time.Since(t0), (cpu()-c0)/time.Duration(n))
	time.Sleep(time.Second)
	var sum int64
	for _, id := range ids {
		s, err := r.Stat(id)
		if err != nil {
			t.Fatal(err)
		}
		sum += s.Memory
	}
	t.Logf("memory %d KiB each", sum/int64(n)/1024)
	t0 = time.Now()
	l, err := r.List(context.Background())
	t.Logf("list %d %v %v", len(l), time.Since(t0), err)
	t0 = time.Now()
	cfg := r.cfg
	r.Close()
	if r, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	t.Logf("adopted in %v", time.Since(t0))
	t0 = time.Now()
	c0 = cpu()
	if err := r.Remove(context.Background(), ids...); err != nil {
		t.Fatal(err)
	}
	t.Logf("removed in %v, CPU %v each", time.Since(t0), (cpu()-c0)/time.Duration(n))
}
