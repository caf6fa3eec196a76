package embed

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// TestFirstFit runs the requests in testdata. Each command `embed` has one line
// per object, in any order of hosts:
//
//	host NAME memory=N cpu=N [used=MEMORY/CPU]
//	node NAME [memory=N] [cpu=N] [on=HOST] [at=HOST]
//
// and prints where each node goes, and what is left of each host. Rewrite with
// -rewrite.
func TestFirstFit(t *testing.T) {
	datadriven.RunTest(t, "testdata/first-fit", func(t *testing.T, d *datadriven.TestData) string {
		r := parse(t, d.Input)
		got, err := FirstFit{}.Embed(r)
		if err != nil {
			return "refused: " + err.Error() + "\n"
		}
		var b strings.Builder
		for _, n := range r.Nodes {
			fmt.Fprintf(&b, "%s: %s\n", n.Name, got[n.Name])
		}
		for _, h := range r.Hosts {
			for i := range r.Nodes {
				if got[r.Nodes[i].Name] == h.Name {
					h.charge(&r.Nodes[i])
				}
			}
			fmt.Fprintf(&b, "left at %s: memory %d, cpu %g\n", h.Name, h.Memory-h.MemoryUsed, h.CPU-h.CPUUsed)
		}
		return b.String()
	})
}

func parse(t *testing.T, text string) Request {
	t.Helper()
	var r Request
	number := func(s string) float64 {
		n, err := strconv.ParseFloat(s, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		fields := map[string]string{}
		for _, w := range words[2:] {
			key, value, _ := strings.Cut(w, "=")
			fields[key] = value
		}
		value := func(key string) float64 {
			if fields[key] == "" {
				return 0
			}
			return number(fields[key])
		}
		switch words[0] {
		case "host":
			h := Host{Name: words[1], Memory: int64(value("memory")), CPU: value("cpu")}
			if memory, cpu, ok := strings.Cut(fields["used"], "/"); ok {
				h.MemoryUsed, h.CPUUsed = int64(number(memory)), number(cpu)
			}
			r.Hosts = append(r.Hosts, h)
		case "node":
			r.Nodes = append(r.Nodes, Node{
				Name: words[1], Memory: int64(value("memory")), CPU: value("cpu"), On: fields["on"], At: fields["at"],
			})
		default:
			t.Fatalf("%q is no object", words[0])
		}
	}
	return r
}

// random gives a request with up to 20 nodes and 5 hosts, some of them short.
func random(rng *rand.Rand) Request {
	var r Request
	for i := range 1 + rng.IntN(5) {
		r.Hosts = append(r.Hosts, Host{
			Name: fmt.Sprintf("h%d", i), Memory: int64(rng.IntN(20)), CPU: float64(rng.IntN(8)),
			MemoryUsed: int64(rng.IntN(12)), CPUUsed: float64(rng.IntN(5)),
		})
	}
	for i := range rng.IntN(20) {
		n := Node{Name: fmt.Sprintf("n%d", i), Memory: int64(rng.IntN(6)), CPU: float64(rng.IntN(3))}
		switch rng.IntN(4) {
		case 0:
			n.On = r.Hosts[rng.IntN(len(r.Hosts))].Name
		case 1:
			n.At = fmt.Sprintf("h%d", rng.IntN(len(r.Hosts)+2)) // perhaps one that has vanished
		}
		r.Nodes = append(r.Nodes, n)
	}
	return r
}

// TestFirstFitKeepsItsPromises checks on random requests: On and At are respected,
// a node goes past a host only where it has no room for it, an overfull host was
// the least full one, the order of the hosts does not matter, and a second
// embedding of the result changes nothing.
func TestFirstFitKeepsItsPromises(t *testing.T) {
	for seed := range uint64(3000) {
		rng := rand.New(rand.NewPCG(seed, 1))
		r := random(rng)
		before := slices.Clone(r.Hosts)
		got, err := FirstFit{}.Embed(r)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if !slices.Equal(before, r.Hosts) {
			t.Fatalf("seed %d: the request was changed", seed)
		}
		check(t, seed, r, got)

		shuffled := r
		shuffled.Hosts = slices.Clone(r.Hosts)
		rng.Shuffle(len(shuffled.Hosts), func(i, j int) { shuffled.Hosts[i], shuffled.Hosts[j] = shuffled.Hosts[j], shuffled.Hosts[i] })
		if again, err := (FirstFit{}).Embed(shuffled); err != nil || !maps.Equal(got, again) {
			t.Errorf("seed %d: with the hosts in another order %v, %v; before %v", seed, again, err, got)
		}
		placed := r
		placed.Nodes = slices.Clone(r.Nodes)
		for i := range placed.Nodes {
			placed.Nodes[i].At = got[placed.Nodes[i].Name]
		}
		placed.Nodes = append(placed.Nodes, Node{Name: "new", Memory: 1})
		again, err := FirstFit{}.Embed(placed)
		delete(again, "new")
		if err != nil || !reflect.DeepEqual(got, again) {
			t.Errorf("seed %d: with one node more %v, %v; before %v", seed, again, err, got)
		}
	}
}

func check(t *testing.T, seed uint64, r Request, got Assignment) {
	t.Helper()
	if len(got) != len(r.Nodes) {
		t.Errorf("seed %d: %d of %d nodes are assigned", seed, len(got), len(r.Nodes))
	}
	hosts := map[string]*Host{}
	for _, h := range r.Hosts { // in the order of their names
		hosts[h.Name] = &h
	}
	var free []*Node
	for i := range r.Nodes {
		n := &r.Nodes[i]
		switch {
		case n.On != "" && got[n.Name] != n.On, n.On == "" && n.At != "" && got[n.Name] != n.At:
			t.Errorf("seed %d: %+v is put on %s", seed, *n, got[n.Name])
		case n.On != "" || n.At != "":
			if h := hosts[got[n.Name]]; h != nil {
				h.charge(n)
			}
		default:
			free = append(free, n)
		}
	}
	for _, n := range free {
		mine := hosts[got[n.Name]]
		room := mine.MemoryUsed+n.Memory <= mine.Memory && mine.CPUUsed+n.CPU <= mine.CPU ||
			n.Memory == 0 && mine.CPUUsed+n.CPU <= mine.CPU || n.CPU == 0 && mine.MemoryUsed+n.Memory <= mine.Memory || n.Memory == 0 && n.CPU == 0
		for _, h := range r.Hosts {
			other := hosts[h.Name]
			if other.fits(n) && (!room || h.Name < mine.Name) {
				t.Errorf("seed %d: %+v is put on %+v, though there is room on %+v", seed, *n, *mine, *other)
			}
			if !room && other.left() > mine.left() {
				t.Errorf("seed %d: %+v is put on %+v, which is fuller than %+v", seed, *n, *mine, *other)
			}
		}
		mine.charge(n)
	}
}

// Tenths of a core add up to whole ones, though no floating point number is a tenth.
func TestSharesOfACoreAddUp(t *testing.T) {
	r := Request{Hosts: []Host{{Name: "alpha", CPU: 2}, {Name: "beta", CPU: 2}}}
	for i := range 21 {
		r.Nodes = append(r.Nodes, Node{Name: fmt.Sprint(i), CPU: 0.1})
	}
	got, err := FirstFit{}.Embed(r)
	if err != nil {
		t.Fatal(err)
	}
	on := map[string]int{}
	for _, host := range got {
		on[host]++
	}
	if on["alpha"] != 20 || on["beta"] != 1 {
		t.Errorf("of 21 nodes that may have a tenth of a core: %v", on)
	}
}
