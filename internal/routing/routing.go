// Package routing turns the routing part of a VNet's description into what its
// nodes need: configuration files and processes for FRR and BIRD, or computed
// routes for nodes without a daemon. The package is pure: it reads a completed
// VNet and returns values.
package routing

import (
	"net/netip"

	"trellis/internal/vnet"
)

// Config is what one node needs for its routing.
type Config struct {
	Daemons Daemons
	Routes  []Route // static routing only, sorted by prefix
}

// Daemons is the routing software of a node: the configuration files, and the
// processes that the node's init supervises, in starting order.
type Daemons struct {
	Kind     vnet.Daemon `json:"kind,omitempty"` // empty: none
	Files    []vnet.File `json:"files,omitempty"`
	Services []Service   `json:"services,omitempty"`
	// Dirs lists directories, mode 0755, that must exist before the services
	// start; they lie under /run, which is empty when a node starts.
	Dirs []string `json:"dirs,omitempty"`
	// Yields says that the services are left out where the node's image has a command
	// of its own, which then starts what it wants: nothing but the user's files asks for
	// them.
	Yields bool `json:"yields,omitempty"`
}

// Service is one supervised process of a node.
type Service struct {
	Name string   `json:"name"` // [a-z0-9-]+, unique in the node
	Argv []string `json:"argv"` // Argv[0] is an absolute path inside the node
	Env  []string `json:"env,omitempty"`
	// After names a path inside the node that must exist before the service
	// starts; empty: none. FRR's protocol daemons need zebra's socket: one that
	// starts without it tries again only after ten seconds (zclient.c). When
	// zebra ends, they must be restarted as well: they do not send their routes
	// again, and a zebra that has started anew removes the old ones after the
	// time of its option -K.
	After string `json:"after,omitempty"`
	// Ready names a path inside the node by which the service is ready to have its
	// configuration loaded; empty: it reads that itself.
	Ready string `json:"ready,omitempty"`
	// Loads says that the service loads the configuration of those with Ready, and
	// ends. It is given two arguments more where it is to load one alone: -d and the
	// name.
	Loads bool `json:"loads,omitempty"`
	// Optional says that the node may lack the program, and then goes without.
	Optional bool `json:"optional,omitempty"`
}

// Route is a computed route, with its equal-cost next hops sorted. Routes share
// their Hops; treat them as read-only.
//
// Whoever installs it gives the node's own loopback address of the prefix's
// family as the preferred source: it is the one address that every other node
// is sure to have a route back to.
type Route struct {
	Prefix netip.Prefix `json:"prefix"`
	Hops   []NextHop    `json:"hops"`
}

// NextHop is one way out of a node.
type NextHop struct {
	Gateway   netip.Addr `json:"gateway"`
	Interface string     `json:"interface"`
}
