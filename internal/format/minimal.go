package format

import (
	"slices"

	"trellis/internal/vnet"
)

// keep says which of the values that Complete would draw must be written
// because it would draw others.
type keep struct {
	addressing bool
	nodes      []nodeKeep
	links      []linkKeep
}

type nodeKeep struct {
	routing, asn, loopbacks, routerID bool
}

type linkKeep struct {
	name bool
	ends []endKeep
}

type endKeep struct {
	name, mac, addrs bool
}

// minimal finds out what of a completed network need not be written, so that a
// converted file stays as short as one written by hand. It leaves everything
// out, completes, looks at what came out differently, keeps that, and starts
// again until nothing differs. What is kept only grows, and with everything
// kept nothing can differ, so it ends.
func minimal(v *vnet.VNet) keep {
	k := keep{nodes: make([]nodeKeep, len(v.Nodes)), links: make([]linkKeep, len(v.Links))}
	for i := range v.Links {
		k.links[i].ends = make([]endKeep, len(v.Links[i].Endpoints))
	}
	for {
		c := k.strip(v)
		// An error means a pool without room; what it left blank differs below.
		_ = c.Complete()
		if !k.grow(v, c) {
			return k
		}
	}
}

// strip copies the network without what is not kept.
func (k *keep) strip(v *vnet.VNet) *vnet.VNet {
	c := &vnet.VNet{Name: v.Name, Routing: v.Routing, Nodes: slices.Clone(v.Nodes), Links: slices.Clone(v.Links)}
	if k.addressing {
		c.Addressing = v.Addressing
	}
	for i := range c.Nodes {
		n, keep := &c.Nodes[i], k.nodes[i]
		n.Files = slices.Clone(n.Files) // Complete sorts them
		if !keep.routing {
			n.Routing = vnet.Routing{}
		}
		if !keep.asn {
			n.ASN = 0
		}
		if !keep.loopbacks {
			n.Loopbacks = nil
		} else {
			n.Loopbacks = slices.Clone(n.Loopbacks)
		}
		if !keep.routerID {
			n.RouterID = vnet.Node{}.RouterID
		}
	}
	for i := range c.Links {
		l, keep := &c.Links[i], k.links[i]
		l.Endpoints = slices.Clone(l.Endpoints)
		if !keep.name {
			l.Name = ""
		}
		for j := range l.Endpoints {
			e, keep := &l.Endpoints[j], keep.ends[j]
			e.Auto = false // whoever writes a name down has chosen it
			if !keep.name {
				e.Name = ""
			}
			if !keep.mac {
				e.MAC = vnet.MAC{}
			}
			if !keep.addrs {
				e.Addrs = nil
			}
		}
	}
	return c
}

// grow keeps what differs between the network and its completed remains, and
// reports whether anything was added. Causes go before their consequences: a
// link's addresses hang on its name, so a wrong name alone is kept first.
func (k *keep) grow(v, c *vnet.VNet) bool {
	grown := false
	need := func(flag *bool, differs bool) {
		if differs && !*flag {
			*flag = true
			grown = true
		}
	}
	need(&k.addressing, v.Addressing != c.Addressing)
	for i := range v.Nodes {
		need(&k.nodes[i].routing, v.Nodes[i].Routing != c.Nodes[i].Routing)
	}
	for i := range v.Links {
		need(&k.links[i].name, v.Links[i].Name != c.Links[i].Name)
		for j := range v.Links[i].Endpoints {
			a, b := &v.Links[i].Endpoints[j], &c.Links[i].Endpoints[j]
			need(&k.links[i].ends[j].name, !a.Auto && b.Auto)
		}
	}
	if grown {
		return true
	}
	for i := range v.Links {
		for j := range v.Links[i].Endpoints {
			need(&k.links[i].ends[j].name, v.Links[i].Endpoints[j].Name != c.Links[i].Endpoints[j].Name)
		}
	}
	if grown {
		return true
	}
	for i := range v.Nodes {
		a, b := &v.Nodes[i], &c.Nodes[i]
		need(&k.nodes[i].asn, a.ASN != b.ASN)
		need(&k.nodes[i].loopbacks, !slices.Equal(a.Loopbacks, b.Loopbacks))
	}
	for i := range v.Links {
		for j := range v.Links[i].Endpoints {
			a, b := &v.Links[i].Endpoints[j], &c.Links[i].Endpoints[j]
			need(&k.links[i].ends[j].mac, a.MAC != b.MAC)
			need(&k.links[i].ends[j].addrs, !slices.Equal(a.Addrs, b.Addrs))
		}
	}
	if grown {
		return true
	}
	for i := range v.Nodes {
		need(&k.nodes[i].routerID, v.Nodes[i].RouterID != c.Nodes[i].RouterID)
	}
	return grown
}
