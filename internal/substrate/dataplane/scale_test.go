package dataplane_test

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	"trellis/internal/substrate/dataplane"
	"trellis/internal/substrate/nstest"
	"trellis/internal/substrate/port"
	"trellis/internal/substrate/rcu"
	"trellis/test/testenv"
)

// scalePorts, in the environment, is how many ports TestScale makes.
const scalePorts = "TRELLIS_SCALE_PORTS"

// TestScale makes the ports of many networks, and measures what each costs as
// they become more, what a service that starts finds, and what one network costs
// among all the others.
func TestScale(t *testing.T) {
	testenv.Measures(t)
	l := newLab(t)
	total, each := 400, 40 // ports, and of them in one network
	if n, err := strconv.Atoi(os.Getenv(scalePorts)); err == nil {
		total = n
	}
	made := nodes(t, 20)
	release := must2(rcu.Expedite())
	defer func() { must(t, release()) }()
	vnet := func(i int) string { return fmt.Sprintf("net%d", i/each) }
	var attach []time.Duration // of each network
	specs := make([]port.Spec, total)
	for i := range specs {
		specs[i] = nstest.Spec(made[i%len(made)], fmt.Sprintf("e%d", i))
	}
	began := time.Now()
	must(t, port.Create(specs))
	at := map[string]int{}
	for _, s := range must2(port.List("test")) {
		at[s.Device] = s.Index
	}
	t.Logf("the kernel makes %d ports in %v", total, time.Since(began))
	index := make([]int, total)
	for i, s := range specs {
		index[i] = at[s.Device]
	}
	for start := 0; start < total; start += each {
		began := time.Now()
		for i := start; i < start+each; i++ {
			must(t, l.Attach(vnet(i), specs[i].Device, index[i], dataplane.Port))
		}
		for i := start; i < start+each; i += 2 {
			must(t, l.Join(dataplane.End{Index: index[i]}, dataplane.End{Index: index[i+1]}))
		}
		attach = append(attach, time.Since(began)/time.Duration(each))
	}
	mean := func(d []time.Duration) (sum time.Duration) {
		for _, each := range d {
			sum += each
		}
		return sum / time.Duration(len(d))
	}
	tenth := max(1, len(attach)/10)
	t.Logf("attach and join: the first tenth %v a port, the last %v", mean(attach[:tenth]), mean(attach[len(attach)-tenth:]))

	var before, after runtime.MemStats
	must(t, l.Close())
	l.Dataplane = nil
	runtime.GC()
	runtime.ReadMemStats(&before)
	files := len(must2(os.ReadDir("/proc/self/fd")))
	began = time.Now()
	l.Dataplane = mustOpen(t, l.dir)
	adopt := time.Since(began)
	runtime.GC()
	runtime.ReadMemStats(&after)
	files = len(must2(os.ReadDir("/proc/self/fd"))) - files
	bytes := int(after.HeapAlloc-before.HeapAlloc) / total
	t.Logf("adopt %d ports: %v, %v a port; %d bytes a port, %d descriptors in all", total, adopt, adopt/time.Duration(total), bytes, files)
	if files > 40 { // programs and maps; none a port
		t.Errorf("the data plane holds %d descriptors with %d ports", files, total)
	}
	if total >= 4000 && bytes > 1000 {
		t.Errorf("%d bytes a port", bytes)
	}
	if limit := 10*time.Second + time.Duration(total)*2*time.Millisecond; adopt > limit { // about 60 µs a port on a quiet machine
		t.Errorf("adopting takes %v", adopt)
	}

	began = time.Now()
	one, err := l.Read(vnet(0))
	must(t, err)
	read := time.Since(began)
	if len(one) != each || one[0].Mode != dataplane.Direct {
		t.Fatalf("%d ports of a network: %+v", len(one), one)
	}
	began = time.Now()
	if counters, err := l.Counters(vnet(0)); err != nil || len(counters) != each {
		t.Fatalf("counters of %d ports: %v", len(counters), err)
	}
	count := time.Since(began)
	began = time.Now()
	must(t, l.Remove(vnet(0)))
	remove := time.Since(began)
	t.Logf("one network of %d ports: read %v, counters %v, remove %v", each, read, count, remove)
	if left := must2(l.Read()); len(left) != total-each {
		t.Errorf("%d ports left of %d", len(left), total-each)
	}
	if n := contents(t, l.dir)["port_index"]; n != total-each {
		t.Errorf("%d entries left of %d", n, total-each)
	}

	began = time.Now()
	must(t, port.DeleteGroup(specs[0].Group))
	t.Logf("the kernel deletes them in %v", time.Since(began))
	began = time.Now()
	for i := each; i < total; i += each {
		must(t, l.Remove(vnet(i)))
	}
	t.Logf("forget %d ports: %v", total-each, time.Since(began))
	if left := contents(t, l.dir); len(left) != 0 {
		t.Errorf("left in the maps: %v", left)
	}
}
