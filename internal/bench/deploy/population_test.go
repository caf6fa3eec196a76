package deploy

import (
	"fmt"
	"math"
	"testing"

	"trellis/internal/vnet"
)

// rings gives networks of these sizes.
func rings(t *testing.T, sizes ...int) []Case {
	t.Helper()
	var cases []Case
	for _, n := range sizes {
		v, err := Ring(n, vnet.Routing{Protocol: vnet.Static})
		if err != nil {
			t.Fatal(err)
		}
		cases = append(cases, Case{Name: v.Name, Source: "ring", VNet: v})
	}
	return cases
}

func TestPopulation(t *testing.T) {
	// The sizes of two dozen of the Zoo's networks.
	from := rings(t, 11, 12, 13, 19, 24, 25, 26, 29, 40, 41, 42, 43, 58, 61, 66, 69, 110, 113, 145, 149, 153, 158, 197, 754)
	for _, test := range []struct{ nodes, networks, largest int }{
		{ZooNodes, ZooNetworks, 754},
		{4000, 101, 197},
		{1000, 25, 113},
		{100, 3, 12},
	} {
		t.Run(fmt.Sprint(test.nodes), func(t *testing.T) {
			got, err := Population(from, test.nodes)
			if err != nil {
				t.Fatal(err)
			}
			nodes, _ := size(got)
			if nodes > test.nodes || nodes < test.nodes-11 {
				t.Errorf("%d nodes, want %d or a few less", nodes, test.nodes)
			}
			if n := len(got); math.Abs(float64(n-test.networks)) > 0.2*float64(test.networks)+5 {
				t.Errorf("%d networks, want about %d", n, test.networks)
			}
			names, largest := map[string]bool{}, 0
			for _, c := range got {
				if names[c.VNet.Name] {
					t.Errorf("two networks are named %s", c.VNet.Name)
				}
				names[c.VNet.Name] = true
				largest = max(largest, len(c.VNet.Nodes))
				if err := c.VNet.Validate(); err != nil {
					t.Error(err)
				}
			}
			if largest != test.largest {
				t.Errorf("the largest has %d nodes, want %d", largest, test.largest)
			}
			again, err := Population(from, test.nodes)
			if err != nil {
				t.Fatal(err)
			}
			for i := range got {
				if got[i].Name != again[i].Name {
					t.Fatalf("the order is not the same again: network %d is %s, then %s", i, got[i].Name, again[i].Name)
				}
			}
		})
	}
	if got, err := Population(from, 80); err == nil {
		t.Errorf("80 nodes of networks with 11 and more: %d networks, want an error", len(got))
	}
}

func TestTenths(t *testing.T) {
	for _, test := range []struct {
		name  string
		spans []span
		first float64
		last  float64
	}{
		{"one network", []span{{100, 0, 10}}, 10, 10},
		{"one after the other", []span{{100, 0, 10}, {100, 10, 30}}, 10, 5},
		{"side by side", []span{{100, 0, 10}, {100, 0, 10}}, 20, 20},
		{"with a pause", []span{{90, 0, 9}, {10, 19, 20}}, 10, 10.0 / 11},
		{"overlapping", []span{{50, 0, 10}, {50, 5, 15}}, 5, 5},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := tenths(test.spans)
			if len(got) != 10 {
				t.Fatalf("%d rates, want 10: %v", len(got), got)
			}
			if math.Abs(got[0]-test.first) > 1e-6 || math.Abs(got[9]-test.last) > 1e-6 {
				t.Errorf("first and last are %.3f and %.3f, want %.3f and %.3f", got[0], got[9], test.first, test.last)
			}
		})
	}
}
