// Package config reads the configuration of a service, trellis.yaml: what the
// host is called, what it offers, and how it works together with others.
//
// Reading is strict: what is wrong is reported with file, line and remedy, all of it
// at once, and nothing is guessed.
package config

import (
	"net/netip"

	"trellis/internal/pki"
)

// DefaultFile is read where it is there and no other file is named.
const DefaultFile = "/etc/trellis/trellis.yaml"

// Role is one of what a service can be.
type Role string

// Roles of a service. By default it has all of them.
const (
	VNP   Role = "vnp"   // takes descriptions of networks, and answers for them
	PIP   Role = "pip"   // admits and places networks
	Agent Role = "agent" // builds them on this machine
)

var roles = []Role{VNP, PIP, Agent}

// XDP modes of an uplink.
const (
	Auto    = "auto"    // native where the device can, else generic, which is reported
	Native  = "native"  // refused where the device cannot
	Generic = "generic" // works everywhere, at a cost
)

// Config is what a file says. The zero value is that of one machine on its own.
type Config struct {
	File string // where it was read from; empty: nowhere
	// Host is the substrate node's name; empty: the one that it has.
	Host    string
	Roles   []Role // sorted as above; never empty after Read
	Uplinks []Uplink
	Memory  int64   // bytes that nodes may have; 0: what the machine has
	CPU     float64 // cores that nodes may have; 0: what the machine has
	// Listen is the host:port at which other hosts reach the agent; empty: none.
	Listen string
	// StoreListen is the host:port at which other hosts reach the store of this
	// one; empty: none. StoreEndpoints are the URLs of a store elsewhere; empty:
	// the store is in this process.
	StoreListen    string
	StoreEndpoints []string
	// TLS are the host's certificates, as absolute paths; zero: none.
	TLS    pki.Files
	Images Images
	// Metrics is the host:port of Prometheus' scrapes over HTTP; empty: the unix
	// socket alone.
	Metrics string
}

// Uplink is an underlay interface of the host.
type Uplink struct {
	Interface string
	Addrs     []netip.Addr // empty: those that the interface has
	XDP       string       // Auto, Native, Generic
}

// Has reports whether the service has a role.
func (c *Config) Has(r Role) bool {
	for _, have := range c.Roles {
		if have == r {
			return true
		}
	}
	return false
}

// Alone is the configuration of one machine on its own.
func Alone() *Config { return &Config{Roles: roles} }
