package equal

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// chunk is how many cases are tried at a time: no queue of the kernel on the way
// holds less than 256 frames.
const chunk = 50

// setting reads a number from the environment.
func setting(t *testing.T, name string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s=%s is no number", name, text)
	}
	return n
}

// Whatever comes in, and whatever the routers hold: the fast path sends what the
// stack would have sent.
func TestEqual(t *testing.T) {
	l := newLab(t)
	cases := setting(t, "TRELLIS_EQUAL_CASES", 6000)
	perWorld := min(max(600, cases/200), 3000)
	first, only := uint64(1), os.Getenv("TRELLIS_EQUAL_SEED") != ""
	if only {
		first, cases, perWorld = setting(t, "TRELLIS_EQUAL_SEED", 1), 3000, 3000
	}
	var all tally
	l.complaints = map[string]int{}
	begun, told := time.Now(), time.Now()
	for seed := first; all.tried < cases; seed++ {
		n, err := l.world(t, seed, perWorld)
		if err != nil {
			t.Fatalf("world %d: %v", seed, err)
		}
		if t.Failed() {
			break
		}
		all.tried, all.fast, all.cut, all.frames = all.tried+n.tried, all.fast+n.fast, all.cut+n.cut, all.frames+n.frames
		if time.Since(told) > time.Minute {
			t.Logf("%d cases of %d, %.0f a second", all.tried, cases, float64(all.tried)/time.Since(begun).Seconds())
			told = time.Now()
		}
	}
	t.Logf("%d cases in %v; %d went by the fast path, %d of them by cut-through; the slow router has sent %d frames",
		all.tried, time.Since(begun).Round(time.Second), all.fast, all.cut, all.frames)
	for line, times := range l.complaints {
		t.Logf("%d times: %s", times, line)
	}
	if !only && (all.fast*10 < all.tried || all.cut*100 < all.tried) {
		t.Errorf("only %d of %d cases went by the fast path, %d of them by cut-through: little was tried", all.fast, all.tried, all.cut)
	}
}

// tally counts cases.
type tally struct {
	tried  uint64
	fast   uint64 // went by the fast path,
	cut    uint64 // and of them past the node's end
	frames uint64 // the slow router has sent
}

// world tries one world.
func (l *lab) world(t *testing.T, seed, cases uint64) (n tally, err error) {
	w := newWorld(seed)
	p, err := l.newPair(w)
	if err != nil {
		return n, err
	}
	defer p.close()
	defer func() {
		if err == nil {
			n.tried, n.fast = cases, p.fastPackets(p.routers[0])
			n.cut, err = p.cutThrough(p.routers[0])
		}
	}()
	for line := range strings.Lines(p.routers[0].log) {
		if line = strings.TrimSpace(line); !strings.HasPrefix(line, "Command failed") {
			l.complaints[line]++
		}
	}
	m := &maker{Rand: rand.New(rand.NewPCG(seed, 0x6672616d65)), dst4: w.dst4, dst6: w.dst6}
	for tried := uint64(0); tried < cases; tried += chunk {
		shots := m.shots(chunk)
		before := p.fastPackets(p.routers[1])
		o, err := p.try(shots, soon)
		if err != nil {
			return n, err
		}
		for _, times := range o[1] {
			n.frames += uint64(times)
		}
		if p.fastPackets(p.routers[1]) != before {
			return n, fmt.Errorf("the slow router is fast")
		}
		if o.difference() == "" {
			continue
		}
		p.gather(surely)
		d, err := p.differs(shots)
		if err != nil {
			return n, err
		}
		if d != "" {
			return n, l.report(t, seed, w, p, shots, d)
		}
	}
	return n, nil
}

// report cuts a difference down and prints it. The pair is the one that has
// shown it at first.
func (l *lab) report(t *testing.T, seed uint64, w world, p *pair, shots []shot, first string) error {
	t.Helper()
	shots, err := p.narrow(shots)
	if err != nil {
		return err
	}
	d, err := p.differs(shots)
	if err != nil {
		return err
	}
	again := func(w world) (string, error) {
		p, err := l.newPair(w)
		if err != nil {
			return "", nil // a world that makes a difference in itself is another matter
		}
		defer p.close()
		return p.differs(shots)
	}
	fresh, err := again(w)
	if err != nil {
		return err
	}
	note := ""
	if fresh == "" && d == "" {
		// A frame was lost where the machine was too busy: the kernel bounds the
		// ICMP that a processor has under way (icmp_sk_init, net/ipv4/icmp.c).
		t.Logf("world %d: a difference did not last:\n%s", seed, first)
		return nil
	}
	if fresh == "" {
		note = "\nbut not in routers that are new: it takes what has happened before"
	} else {
		d = fresh
		for i := len(w.items) - 1; i >= 0; i-- {
			less := w
			less.items = slices.Delete(slices.Clone(w.items), i, i+1)
			if still, err := again(less); err != nil {
				return err
			} else if still != "" {
				w, d = less, still
			}
		}
	}
	var b strings.Builder
	for _, i := range w.items {
		fmt.Fprintf(&b, "\n  %v", i)
	}
	for _, s := range shots {
		fmt.Fprintf(&b, "\n  %v", s)
	}
	t.Errorf("world %d: the routers differ%s%s\n%s(try again: TRELLIS_EQUAL_SEED=%d go test ./test/equal -run TestEqual -v)", seed, note, b.String(), d, seed)
	return nil
}
