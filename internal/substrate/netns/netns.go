// Package netns works in the network namespaces of virtual nodes: it sets and
// reads their interfaces, addresses and routes.
package netns

import (
	"errors"
	"net/netip"

	"trellis/internal/routing"
	"trellis/internal/vnet"
)

// NS is an open network namespace.
type NS struct{ fd int }

// Interface is an interface of a node.
type Interface struct {
	Name  string
	MAC   vnet.MAC
	MTU   int
	Up    bool
	Addrs []netip.Prefix // sorted; those that Trellis placed
}

// Interior is the inside of a node, as far as Trellis sets it.
type Interior struct {
	Interfaces []Interface    // sorted by name, without lo
	Loopbacks  []netip.Prefix // sorted; addresses of lo that Trellis placed
}

// FIB is a node's main routing table.
type FIB struct{}

// OfPid opens the network namespace of a process; it refuses the caller's own.
func OfPid(pid int) (*NS, error) { return nil, errors.ErrUnsupported }

// Close closes the namespace's descriptor.
func (n *NS) Close() error { return errors.ErrUnsupported }

// FD gives the namespace's descriptor, owned by n.
func (n *NS) FD() int { return n.fd }

// Do calls fn on an OS thread inside the namespace.
func (n *NS) Do(fn func() error) error { return errors.ErrUnsupported }

// Defaults sets what interfaces that arrive later inherit, and the user's sysctls.
func (n *NS) Defaults(sysctls map[string]string) error { return errors.ErrUnsupported }

// Read gives the interior as it is.
func (n *NS) Read() (Interior, error) { return Interior{}, errors.ErrUnsupported }

// Configure converges the interior; changed counts the changes made.
func (n *NS) Configure(want Interior) (changed int, err error) { return 0, errors.ErrUnsupported }

// SetRoutes converges the routes that Trellis owns.
func (n *NS) SetRoutes(want []routing.Route) (changed int, err error) {
	return 0, errors.ErrUnsupported
}

// FIB reads the main table in both families, whoever made the routes.
func (n *NS) FIB() (*FIB, error) { return nil, errors.ErrUnsupported }

// Covers reports whether a packet to a would be forwarded or delivered to a neighbour.
func (f *FIB) Covers(a netip.Addr) bool { return false }

// RaiseNeighbourLimits makes room for n neighbours of each family on the whole
// machine; it never lowers a limit.
func RaiseNeighbourLimits(n int) error { return errors.ErrUnsupported }
