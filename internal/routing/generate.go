package routing

import (
	"fmt"

	"trellis/internal/vnet"
)

// Generate gives every node of a completed and valid VNet its routing, keyed by
// the node's name. Nodes without routing have the zero Config.
//
// The same VNet gives the same configuration, byte for byte. Generate fails on
// combinations that no daemon can serve, such as IS-IS under BIRD 2, and on
// static routing of more than [MaxStaticRoutes] routes.
func Generate(v *vnet.VNet) (map[string]Config, error) {
	rs, err := routers(v)
	if err != nil {
		return nil, err
	}
	routes, err := staticRoutes(v)
	if err != nil {
		return nil, err
	}
	shared := survey(v)
	configs := make(map[string]Config, len(rs))
	for i := range rs {
		r := &rs[i]
		var c Config
		var err error
		switch r.Routing.Protocol {
		case vnet.None:
		case vnet.Static:
			c.Routes = routes[r.Name]
		default:
			c.Daemons, err = daemons(r, shared)
		}
		if err != nil {
			return nil, fmt.Errorf("routing of %s: %w", r.Name, err)
		}
		configs[r.Name] = c
	}
	return configs, nil
}

// daemons configures the routing software of one node.
func daemons(r *router, s network) (Daemons, error) {
	switch r.Routing.Daemon {
	case vnet.FRR:
		return frr(r, s)
	case vnet.BIRD:
		return bird(r)
	default:
		return Daemons{}, fmt.Errorf("routing daemon %q: want %s or %s", r.Routing.Daemon, vnet.FRR, vnet.BIRD)
	}
}

// network is what all routers of one network must agree on.
type network struct {
	// lspMTU is the size of the largest IS-IS LSP that passes every link of the
	// network, since a router floods the LSPs of others unchanged (ISO 10589,
	// 7.2.4.1); 0 leaves the daemon's default, which is already less.
	lspMTU int
	// multiTopology says that some IS-IS link carries only one address family,
	// so that the two need shortest paths of their own (RFC 5120).
	multiTopology bool
}

// survey finds what the whole network must agree on.
func survey(v *vnet.VNet) network {
	isis := map[string]bool{}
	for i := range v.Nodes {
		isis[v.Nodes[i].Name] = v.Nodes[i].Routing.Protocol == vnet.ISIS
	}
	const (
		llc        = 3    // bytes of LLC header before an IS-IS PDU (ISO 8802-2)
		defaultLSP = 1497 // FRR's lsp-mtu
	)
	var s network
	smallest := defaultLSP
	for i := range v.Links {
		for j := range v.Links[i].Endpoints {
			e := &v.Links[i].Endpoints[j]
			if !isis[e.Node] {
				continue
			}
			if e.MTU > 0 {
				smallest = min(smallest, e.MTU-llc)
			}
			s.multiTopology = s.multiTopology || hasFamily(e, ipv4) != hasFamily(e, ipv6)
		}
	}
	if smallest < defaultLSP {
		s.lspMTU = smallest
	}
	return s
}
