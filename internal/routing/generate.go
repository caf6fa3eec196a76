package routing

import (
	"fmt"
	"strings"

	"trellis/internal/vnet"
)

// Generate gives every node of a completed and valid VNet its routing, keyed by
// the node's name. Nodes without routing have the zero Config.
//
// The same VNet and load give the same configuration, byte for byte. Generate
// fails on combinations that no daemon can serve, such as IS-IS under BIRD 2, and
// on static routing of more than [MaxStaticRoutes] routes.
func Generate(v *vnet.VNet, l Load) (map[string]Config, error) {
	rs, err := routers(v, l)
	if err != nil {
		return nil, err
	}
	routes, err := staticRoutes(v)
	if err != nil {
		return nil, err
	}
	configs := make(map[string]Config, len(rs))
	for i := range rs {
		r := &rs[i]
		c := Config{Routes: routes[r.Name]}
		if !r.Kind.Traits().Routes {
			c.Routes = defaultRoutes(r)
		}
		if c.Daemons, err = daemons(r); err != nil {
			return nil, fmt.Errorf("routing of %s: %w", r.Name, err)
		}
		configs[r.Name] = c
	}
	return configs, nil
}

// daemons configures the routing software of one node.
func daemons(r *router) (Daemons, error) {
	if r.Routing.Daemon == "" {
		return Daemons{}, nil
	}
	s := softwareOf(r.Routing.Daemon)
	if s == nil {
		return Daemons{}, fmt.Errorf("routing daemon %q: want one of %s", r.Routing.Daemon, strings.Join(vnet.DaemonNames(), ", "))
	}
	d, err := s.generate(r)
	d.Yields = r.Image != "" && r.Image != vnet.DefaultImage && !r.Routing.Protocol.NeedsDaemon()
	return d, err
}

// defaultRoutes gives a host its default routes, one a family: to the first
// router, in the order of the links and of their ends, that it shares a subnet
// with.
func defaultRoutes(r *router) []Route {
	var routes []Route
	for _, f := range []family{ipv4, ipv6} {
		if hop, ok := gateway(r, f); ok {
			routes = append(routes, Route{Prefix: f.anywhere(), Hops: []NextHop{hop}})
		}
	}
	return routes
}

// gateway finds a host's default gateway.
func gateway(r *router, f family) (NextHop, bool) {
	for i := range r.ports {
		p := &r.ports[i]
		for q := range p.peers() {
			if !q.node.Kind.Traits().Forwards {
				continue
			}
			if _, their, ok := facing(p.Interface, q.Interface, f); ok {
				return NextHop{Gateway: their, Interface: p.Name}, true
			}
		}
	}
	return NextHop{}, false
}
