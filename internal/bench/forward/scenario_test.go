package forward

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

func TestSizes(t *testing.T) {
	for text, mean := range map[string]float64{"64": 64, "1518": 1518, "imix": (7*64 + 4*594 + 1518) / 12.0} {
		s, err := ParseSize(text)
		if err != nil || s.String() != text || s.Mean() != mean {
			t.Errorf("%s is read as %v of mean %v, with the error %v", text, s, s.Mean(), err)
		}
		var back Size
		b, err := json.Marshal(s)
		if err == nil {
			err = json.Unmarshal(b, &back)
		}
		if err != nil || back != s {
			t.Errorf("%s comes back from JSON %s as %v, with the error %v", text, b, back, err)
		}
	}
	for _, text := range []string{"", "63", "1519", "-1", "IMIX", "64.0"} {
		if s, err := ParseSize(text); err == nil {
			t.Errorf("%q is the size %v", text, s)
		}
	}
}

// Routers take turns, and each has seven small frames, four middle ones and a
// large one in twelve.
func TestTurns(t *testing.T) {
	for _, routers := range []int{1, 3, MaxBeside} {
		c := &configuration{sides: routers, wrap: egreFrame}
		m := meter{kinds: c.kinds(IMIX), size: IMIX}
		turns := m.turns()
		if m.routers() != routers || len(turns) != 12*routers || len(turns) > maxTurns || len(m.kinds) > maxKinds {
			t.Fatalf("%d routers: %d, %d kinds, %d turns", routers, m.routers(), len(m.kinds), len(turns))
		}
		seen := map[int]int{}
		for i, k := range turns {
			if int(k)/3 != i%routers {
				t.Fatalf("turn %d is router %d's", i, k/3)
			}
			if f := &m.kinds[k]; f.send.len != imixSizes[k%3]-checkSequence+ethernetLen+ipv4Len+greLen {
				t.Fatalf("kind %d has %d bytes", k, f.send.len)
			}
			seen[imixSizes[k%3]]++
		}
		if seen[64] != 7*routers || seen[594] != 4*routers || seen[1518] != routers {
			t.Errorf("in %d turns there are %v", len(turns), seen)
		}
	}
}

// What the generator and the sink are told of all kinds at once must be the same
// for all of them.
func TestKindsAreAlike(t *testing.T) {
	for _, name := range slices.Concat(Standard(), generators, Beside(5)) {
		c, err := lookUp(name)
		if err != nil {
			t.Fatal(err)
		}
		all := c.kinds(IMIX)
		first := all[0]
		if len(all) != 3*max(1, c.sides) {
			t.Errorf("%s has %d kinds", name, len(all))
		}
		for i, k := range all {
			if len(k.send.header) != len(first.send.header) || k.send.source != first.send.source ||
				len(k.expect.header) != len(first.expect.header) || string(k.expect.mask) != string(first.expect.mask) {
				t.Errorf("%s: kind %d is unlike the first", name, i)
			}
			if max(len(k.send.header), len(k.expect.header))+stampLen > min(headerMax, k.expect.len, k.send.len) {
				t.Errorf("%s: kind %d has no room for a stamp", name, i)
			}
			for j, other := range all[:i] {
				if string(other.expect.header) == string(k.expect.header) {
					t.Errorf("%s: the sink cannot tell kind %d from kind %d", name, i, j)
				}
			}
		}
	}
}

func TestScenarios(t *testing.T) {
	cfg := Config{Sizes: []Size{64, IMIX}, Routes: []int{0, 7}, Flows: []int{64}}
	all := cfg.scenarios()
	if len(all) != 4 || all[3] != (Scenario{Size: IMIX, Routes: 7, Flows: 64}) || all[3].String() != "imix, 7 routes, 64 flows" {
		t.Errorf("scenarios are %v", all)
	}
	c, _ := lookUp(EGREFast100)
	if sc := all[3].of(c); sc.Routes != manyRoutes || sc.Flows != 64 {
		t.Errorf("%s has the scenario %v", c.name, sc)
	}
}

func TestTooLittleMemory(t *testing.T) {
	if err := memoryFor(1<<30, 2<<30); err != nil {
		t.Error(err)
	}
	err := memoryFor(1<<30+1<<20, 2<<30)
	for _, want := range []string{"1025 MiB", "2048 MiB", "--routes"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("too little memory: %v does not say %s", err, want)
		}
	}
	c, _ := lookUp(EGREFast + "-x64")
	if err := checkMemory([]*configuration{c}, Scenario{Size: MinSize, Routes: 1 << 40 / routeBytes}); err == nil {
		t.Error("64 TiB are not too much")
	}
}

func TestFairness(t *testing.T) {
	for _, tc := range []struct {
		shares []uint64
		want   float64
	}{{[]uint64{5, 5, 5, 5}, 1}, {[]uint64{8, 0, 0, 0}, 0.25}, {[]uint64{1, 3}, 0.8}, {[]uint64{0, 0}, 1}, {nil, 1}} {
		if got := Jain(tc.shares); got != tc.want {
			t.Errorf("the index of %v is %v, want %v", tc.shares, got, tc.want)
		}
	}
}

// Buckets follow each other without a gap, and are at most 1/32 wide.
func TestLatencyBuckets(t *testing.T) {
	next := uint64(0)
	for i := range latencyBuckets {
		from, width := bucketNS(i)
		if from != next || width > 1 && float64(width)/float64(from) > 1.0/32 {
			t.Fatalf("bucket %d is from %d on, %d wide, after %d", i, from, width, next)
		}
		next = from + width
	}
	buckets := make([]uint64, latencyBuckets)
	buckets[10], buckets[40], buckets[200] = 50, 49, 1
	at := func(i int) float64 { from, width := bucketNS(i); return float64(from) + float64(width-1)/2 }
	for part, want := range map[float64]float64{0.01: 10, 0.5: 10, 0.51: 40, 0.99: 40, 0.991: at(200), 1: at(200)} {
		if got := percentile(buckets, part); got != want {
			t.Errorf("%v of the frames came within %v ns, want %v", part, got, want)
		}
	}
	if percentile(make([]uint64, latencyBuckets), 0.5) != 0 {
		t.Error("without a frame there is a time")
	}
}
