package routing

import (
	"encoding/xml"
	"fmt"
	"os"
	"strings"
	"testing"

	"trellis/internal/vnet"
)

// described is a completed VNet under construction.
type described struct{ vnet.VNet }

// network describes nodes of one routing kind and point-to-point links "a-b"
// between them; nodes are those that the links name, in that order.
func describe(r vnet.Routing, links ...string) *described {
	d := &described{vnet.VNet{Name: "test", Routing: r}}
	for _, l := range links {
		d.link(vnet.PointToPoint, strings.Split(l, "-")...)
	}
	return d
}

// link adds a link, and those of its ends that are not there yet.
func (d *described) link(kind vnet.LinkType, nodes ...string) *vnet.Link {
	l := vnet.Link{Type: kind}
	for _, n := range nodes {
		if d.Node(n) == nil {
			d.Nodes = append(d.Nodes, vnet.Node{Name: n})
		}
		l.Endpoints = append(l.Endpoints, vnet.Interface{Node: n})
	}
	d.Links = append(d.Links, l)
	return &d.Links[len(d.Links)-1]
}

// complete completes and validates the description.
func (d *described) complete(t testing.TB) *vnet.VNet {
	t.Helper()
	v := d.VNet
	if err := v.Complete(); err != nil {
		t.Fatalf("complete: %v", err)
	}
	if err := v.Validate(); err != nil {
		t.Fatalf("validate: %v", err)
	}
	return &v
}

// generate gives the configuration of a described network.
func (d *described) generate(t testing.TB) map[string]Config {
	t.Helper()
	configs, err := Generate(d.complete(t), Load{})
	if err != nil {
		t.Fatalf("generate: %v", err)
	}
	return configs
}

// abilene lists the links of the Abilene backbone.
var abilene = []string{
	"newyork-chicago", "newyork-washington", "chicago-indianapolis", "seattle-sunnyvale", "seattle-denver",
	"sunnyvale-losangeles", "sunnyvale-denver", "losangeles-houston", "denver-kansascity",
	"kansascity-houston", "kansascity-indianapolis", "houston-atlanta", "atlanta-indianapolis", "atlanta-washington",
}

// zoo reads the bare topology of a Topology Zoo file.
func zoo(t testing.TB, name string, r vnet.Routing) *described {
	t.Helper()
	const folder = "../../../shared/data/zoo/"
	text, err := os.ReadFile(folder + name + ".graphml")
	if os.IsNotExist(err) {
		t.Skipf("needs %s%s.graphml, a file of the Internet Topology Zoo", folder, name)
	}
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Graph struct {
			Nodes []struct {
				ID string `xml:"id,attr"`
			} `xml:"node"`
			Edges []struct {
				Source string `xml:"source,attr"`
				Target string `xml:"target,attr"`
			} `xml:"edge"`
		} `xml:"graph"`
	}
	if err := xml.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	d := describe(r)
	for _, n := range doc.Graph.Nodes {
		d.Nodes = append(d.Nodes, vnet.Node{Name: "n" + n.ID})
	}
	for _, e := range doc.Graph.Edges {
		if e.Source != e.Target {
			d.link(vnet.PointToPoint, "n"+e.Source, "n"+e.Target)
		}
	}
	return d
}

// ring lists the links of a ring of n nodes r1, r2, …
func ring(n int) []string {
	var links []string
	for i := range n {
		links = append(links, fmt.Sprintf("r%d-r%d", i+1, (i+1)%n+1))
	}
	return links
}
