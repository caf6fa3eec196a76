package vnet

import (
	"net/netip"
	"slices"
	"strings"
)

// DaemonKind is what descriptions of networks have to know of one kind of routing
// software. How it is configured, package routing knows, under the same name.
type DaemonKind struct {
	Name    Daemon
	Title   string // as its makers write it
	Package string // of Debian and Ubuntu
	// Dirs are where its programs are installed, besides the search path.
	Dirs []string
	// Programs are those that Trellis starts, the one that always runs first.
	Programs []string
	// More are those that it starts where the user's files call for them.
	More []string
	// Speaks gives the programs that each protocol takes besides the first.
	Speaks map[Protocol][]string
	// Tried lists the versions that Trellis was tried with, by their beginnings.
	Tried []string
	// Unnumbered lists the protocols that it speaks over links without subnets.
	Unnumbered []Protocol

	configures func(path string) bool         // a file of that path is its configuration
	addressed  func(text string) []ownAddress // addresses that a configuration gives to interfaces; nil: not read
}

// DaemonKinds lists what routing software there is. The first whose configuration a
// node brings is the one that runs there.
var DaemonKinds = []*DaemonKind{&frrKind, &birdKind}

// DefaultDaemon speaks the protocols for which no daemon is named.
const DefaultDaemon = FRR

// Kind gives what is known of a daemon; nil: there is none of that name.
func (d Daemon) Kind() *DaemonKind {
	for _, k := range DaemonKinds {
		if k.Name == d {
			return k
		}
	}
	return nil
}

// DaemonNames lists the daemons as descriptions name them.
func DaemonNames() []string {
	return daemonsThat(func(*DaemonKind) bool { return true })
}

func daemonsThat(are func(*DaemonKind) bool) []string {
	var names []string
	for _, k := range DaemonKinds {
		if are(k) {
			names = append(names, string(k.Name))
		}
	}
	return names
}

// unspoken gives a protocol of the routing that its daemon does not speak, empty
// where it speaks all.
func (r Routing) unspoken(d Daemon) Protocol {
	k := d.Kind()
	if k == nil {
		return ""
	}
	for _, p := range []Protocol{OSPF, ISIS, BGP, RIP} {
		if _, ok := k.Speaks[p]; !ok && r.Speaks(p) {
			return p
		}
	}
	return ""
}

// programs names the programs that the node's routing runs.
func (n *Node) programs() []string {
	k := n.Routing.Daemon.Kind()
	if k == nil {
		return nil
	}
	out := []string{k.Programs[0]}
	for _, p := range []Protocol{OSPF, ISIS, BGP, RIP} {
		if n.Routing.Speaks(p) {
			out = append(out, k.Speaks[p]...)
		}
	}
	return out
}

// OwnDaemon gives the routing software that a configuration among the node's
// files is for, empty where there is none. Only where the node starts nothing of
// its own: a command of the user's starts its daemons itself. Whether an image has a
// command shows when it is there.
func (n *Node) OwnDaemon() Daemon {
	if len(n.Cmd) > 0 {
		return ""
	}
	own := n.configuredDaemons()
	if len(own) == 0 || len(own) > 1 && n.Image != "" && n.Image != DefaultImage {
		return "" // an image for several has a way to start them
	}
	return own[0].Name
}

// ConfiguresRouting reports whether a file in a node is the configuration of routing
// software.
func ConfiguresRouting(path string) bool {
	return slices.ContainsFunc(DaemonKinds, func(k *DaemonKind) bool { return k.configures(path) })
}

// configuredDaemons gives the routing software that the node's files configure.
func (n *Node) configuredDaemons() []*DaemonKind {
	var own []*DaemonKind
	for _, k := range DaemonKinds {
		if slices.ContainsFunc(n.Files, func(f File) bool { return k.configures(f.Path) }) {
			own = append(own, k)
		}
	}
	return own
}

// ownAddress is one that a node's own configuration of a daemon gives an interface.
type ownAddress struct {
	iface  string
	prefix netip.Prefix // the zero value where it is not known
	// shared says that routers share it (VRRP): it is taken, but not the interface's.
	shared bool
}

// configured are the addresses of an interface that the node's own configurations say.
type configured struct {
	addressed bool           // it is given one there
	addrs     []netip.Prefix // those that are known
	shared    []netip.Addr
}

// configuredInterfaces gives what the node's own configurations say of addresses, by
// interface.
func (n *Node) configuredInterfaces() map[string]configured {
	found := map[string]configured{}
	for _, k := range DaemonKinds {
		for i := range n.Files {
			if k.addressed == nil || !k.configures(n.Files[i].Path) {
				continue
			}
			for _, a := range k.addressed(string(n.Files[i].Content)) {
				c := found[a.iface]
				switch {
				case a.shared:
					c.shared = append(c.shared, a.prefix.Addr())
				case a.prefix.IsValid():
					c.addrs = append(c.addrs, a.prefix)
				}
				c.addressed = c.addressed || !a.shared
				found[a.iface] = c
			}
		}
	}
	return found
}

// orList writes names as "a, b or c".
func orList(names []string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " or " + names[last]
}
