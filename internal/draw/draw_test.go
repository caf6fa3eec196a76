package draw

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"trellis/internal/format"
	"trellis/internal/vnet"
)

// ring makes a network of n nodes in a ring.
func ring(n int) *vnet.VNet {
	v := &vnet.VNet{Name: "ring"}
	for i := range n {
		v.Nodes = append(v.Nodes, vnet.Node{Name: fmt.Sprintf("node-%d", i)})
		v.Links = append(v.Links, vnet.Link{Name: fmt.Sprintf("l%d", i), Type: vnet.PointToPoint, Endpoints: []vnet.Interface{
			{Node: fmt.Sprintf("node-%d", i)}, {Node: fmt.Sprintf("node-%d", (i+1)%n)},
		}})
	}
	return v
}

// parse checks that a picture is well-formed XML and returns its text.
func parse(t *testing.T, v *vnet.VNet) string {
	t.Helper()
	var b bytes.Buffer
	if err := SVG(&b, v, Options{}); err != nil {
		t.Fatal(err)
	}
	d := xml.NewDecoder(bytes.NewReader(b.Bytes()))
	for {
		_, err := d.Token()
		if errors.Is(err, io.EOF) {
			return b.String()
		}
		if err != nil {
			t.Fatalf("%s: %v", v.Name, err)
		}
	}
}

// clear checks that no two nodes stand on each other.
func checkApart(t *testing.T, p *picture) {
	t.Helper()
	for i := range p.at {
		for j := range i {
			if d := p.at[i].dist(p.at[j]); !(d > 2*p.style.radius) {
				t.Errorf("%s: %s and %s are %.1f apart", p.name, p.vertices[i].label, p.vertices[j].label, d)
			}
		}
	}
}

// covered counts the labels that cover each other.
func covered(p *picture) int {
	n := 0
	for i := range p.names {
		for j := range i {
			if p.names[i].box().overlap(p.names[j].box()) > 4 {
				n++
			}
		}
	}
	return n
}

func TestShapesOfEveryKind(t *testing.T) {
	star, apart, same := &vnet.VNet{Name: "star", Nodes: []vnet.Node{{Name: "hub"}}}, &vnet.VNet{Name: "apart"}, ring(12)
	for i := range 40 {
		name := fmt.Sprint("leaf", i)
		star.Nodes = append(star.Nodes, vnet.Node{Name: name})
		star.Links = append(star.Links, vnet.Link{Type: vnet.PointToPoint, Endpoints: []vnet.Interface{{Node: "hub"}, {Node: name}}})
		apart.Nodes = append(apart.Nodes, vnet.Node{Name: name})
	}
	for i := range same.Nodes {
		same.Nodes[i].Position = &vnet.Position{Latitude: 10, Longitude: float64(i / 6)}
	}
	for _, v := range []*vnet.VNet{{Name: "empty"}, ring(1), ring(2), ring(3), ring(60), star, apart, same} {
		text := parse(t, v)
		p := newPicture(newScene(v, Options{}))
		checkApart(t, p)
		if strings.Contains(text, "NaN") || strings.Contains(text, "Inf") {
			t.Errorf("%s has a coordinate that is no number", v.Name)
		}
		if got := strings.Count(text, "<circle"); got != len(v.Nodes) {
			t.Errorf("%s: %d circles for %d nodes", v.Name, got, len(v.Nodes))
		}
		if again := parse(t, v); again != text {
			t.Errorf("%s is drawn differently each time", v.Name)
		}
		if n := covered(p); n > 0 {
			t.Errorf("%s: %d pairs of names cover each other", v.Name, n)
		}
	}
}

func TestZoo(t *testing.T) {
	files, err := filepath.Glob("../../../shared/data/zoo/*.graphml")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		t.Skip("needs the networks of the Topology Zoo, which are not here")
	}
	for _, file := range files {
		v, _, err := format.Load(file)
		if err != nil {
			t.Fatal(err)
		}
		parse(t, v)
		p := newPicture(newScene(v, Options{}))
		checkApart(t, p)
		if n := covered(p); n > len(v.Nodes)/50 {
			t.Errorf("%s: %d pairs of names cover each other", v.Name, n)
		}
	}
}

func TestTextIsEscaped(t *testing.T) {
	v := &vnet.VNet{Name: `<b>&"x`, Nodes: []vnet.Node{{Name: "<script>"}, {Name: `a"b\`}}, Links: []vnet.Link{
		{Name: "l", Type: vnet.PointToPoint, Endpoints: []vnet.Interface{{Node: "<script>"}, {Node: `a"b\`}}},
	}}
	if text := parse(t, v); strings.Contains(text, "<script") || strings.Contains(text, "<b>") {
		t.Error("names are not escaped in SVG")
	}
	var b bytes.Buffer
	if err := DOT(&b, v, Options{}); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(b.String(), `"a\"b\\"`) {
		t.Errorf("names are not escaped in DOT:\n%s", b.String())
	}
	b.Reset()
	if err := Mermaid(&b, v, Options{}); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(b.String(), "<script") || !strings.Contains(b.String(), "a#quot;b") {
		t.Errorf("names are not escaped in Mermaid:\n%s", b.String())
	}
}

func TestLANsLabelsAndState(t *testing.T) {
	v := ring(3)
	v.Links[0].Down = true
	v.Links[1].Endpoints[0].Tx = vnet.Shape{Rate: 1e9, Delay: 5 * time.Millisecond, Loss: 0.01}
	v.Links = append(v.Links, vnet.Link{Name: "office", Type: vnet.LAN, Endpoints: []vnet.Interface{{Node: "node-0"}, {Node: "node-1"}}})
	text := parse(t, v)
	for _, want := range []string{`class="link down"`, "1gbit 5ms 1% loss / unlimited", ">office</text>", `class="lan"`} {
		if !strings.Contains(text, want) {
			t.Errorf("the picture lacks %q", want)
		}
	}
	even := ring(4)
	for i := range even.Links {
		for j := range even.Links[i].Endpoints {
			even.Links[i].Endpoints[j].Tx.Rate = 1e6
		}
	}
	if text := parse(t, even); strings.Count(text, ">1mbit<") != 0 || !strings.Contains(text, "every link 1mbit") {
		t.Error("a label that all links bear is not said once")
	}
}

// Both sides of the Pacific are near each other, and an ocean takes no more
// than its share of the page.
func TestProjection(t *testing.T) {
	v := ring(4)
	for i, longitude := range []float64{175, 179, -179, -175} {
		v.Nodes[i].Position = &vnet.Position{Latitude: float64(i), Longitude: longitude}
	}
	at, _ := newScene(v, Options{}).project()
	for i := 1; i < 4; i++ {
		if d := at[i].x - at[i-1].x; d <= 0 || d > 5 {
			t.Errorf("node %d is %.1f degrees east of the one before", i, d)
		}
		if at[i].y >= at[i-1].y {
			t.Error("north is not up")
		}
	}
}

func TestGolden(t *testing.T) {
	for name, draw := range map[string]func(io.Writer, *vnet.VNet, Options) error{"ring.dot": DOT, "ring.mmd": Mermaid} {
		v := ring(3)
		v.Links[2].Down = true
		var b bytes.Buffer
		if err := draw(&b, v, Options{}); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join("testdata", name)
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if b.String() != string(want) {
			t.Errorf("%s differs; got\n%s", path, b.String())
		}
	}
}

// labelled is a network with a router, two hosts and a LAN, completed.
func labelled(t *testing.T) *vnet.VNet {
	t.Helper()
	v, _, err := format.Read("office.yaml", []byte(`name: office
routing: ospf
nodes: {Core Router: , edge: , alice: {kind: host}, bob: {kind: host}}
links:
  - [Core Router, edge]
  - [edge, alice]
  - {name: floor, type: lan, endpoints: [edge, bob, Core Router]}
`), nil)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestHostsDifferFromRouters(t *testing.T) {
	v := labelled(t)
	text := parse(t, v)
	if circles, squares := strings.Count(text, "<circle"), strings.Count(text, `class="host"`); circles != 2 || squares != 2 {
		t.Errorf("%d circles and %d squares", circles, squares)
	}
	if !strings.Contains(text, ">Core Router</text>") || strings.Contains(text, ">core-router</text>") {
		t.Error("the node's display name is not shown")
	}
	for name, c := range map[string]struct {
		draw func(io.Writer, *vnet.VNet, Options) error
		want []string
	}{
		"dot":     {DOT, []string{`"alice" [label="alice", tooltip="alice", shape=box`, `"core-router" [label="Core Router"`, `taillabel="eth1`}},
		"mermaid": {Mermaid, []string{`n2["alice"]`, `n0(("Core Router"))`, "eth1 · eth1"}},
	} {
		var b bytes.Buffer
		if err := c.draw(&b, v, Options{Interfaces: true}); err != nil {
			t.Fatal(err)
		}
		for _, want := range c.want {
			if !strings.Contains(b.String(), want) {
				t.Errorf("%s lacks %q:\n%s", name, want, b.String())
			}
		}
	}
}

// What is shown at the ends of links covers nothing else on networks of the size
// that people read it on.
func TestInterfacesAndAddressesDoNotOverlap(t *testing.T) {
	nets := []*vnet.VNet{labelled(t)}
	abilene, _, err := format.Load("../../examples/abilene.yaml")
	if err != nil {
		t.Fatal(err)
	}
	nets = append(nets, abilene)
	for _, o := range []Options{{Interfaces: true}, {Interfaces: true, Addresses: true}} {
		for _, v := range nets {
			p := newPicture(newScene(v, o))
			ends := 0
			for i := range v.Links {
				ends += len(v.Links[i].Endpoints)
			}
			if len(p.tips) != ends {
				t.Errorf("%s: %d labels at %d ends", v.Name, len(p.tips), ends)
			}
			all := append([]*label{}, p.tips...)
			for i, l := range p.names {
				if p.vertices[i].shape != lan {
					all = append(all, l)
				}
			}
			for i := range all {
				for j := range i {
					if all[i].box().overlap(all[j].box()) > 4 {
						t.Errorf("%s %+v: %q and %q cover each other", v.Name, o, all[i].text, all[j].text)
					}
				}
			}
		}
	}
}
