package probe

import "net/netip"

// The address families of a [Pair].
const (
	IPv4 = "ipv4"
	IPv6 = "ipv6"
)

// Elsewhere stands for the namespace of a node that runs on another machine.
const Elsewhere = -1

// Node is one end of echoes.
type Node struct {
	Name string
	// NS is a file descriptor of the node's network namespace. It stays the
	// caller's, and must stay open until Ping returns. A node that is Elsewhere
	// answers echoes, and sends none.
	NS int
	// Addrs holds the node's loopbacks, at most one per family. They are the
	// source of its requests and the destination of the others'.
	Addrs []netip.Addr
}

// addr returns the node's loopback of a family; it is invalid where there is none.
func (n Node) addr(family string) netip.Addr {
	for _, a := range n.Addrs {
		if a.Is4() == (family == IPv4) {
			return a
		}
	}
	return netip.Addr{}
}

// Pair is one echo to make: From and To index the nodes.
type Pair struct {
	From, To int
	Family   string // IPv4 or IPv6
}
