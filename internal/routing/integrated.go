package routing

import (
	"slices"
	"strings"

	"trellis/internal/vnet"
)

// splitIntegrated deals an integrated FRR configuration out to daemons: the
// named ones, and those that it calls for ([calledFor]). What has one owner goes to
// it alone; everything else goes to all, since a daemon passes over what it does not
// know with a warning. What only vtysh knows goes to none.
func splitIntegrated(text string, daemons []string) map[string][]*stanza {
	confs := map[string][]*stanza{}
	for _, daemon := range daemons {
		confs[daemon] = nil
	}
	list := slices.DeleteFunc(parseStanzas(text), func(s *stanza) bool { return ownerOf(s.line) == vtysh })
	for daemon := range calledFor(list) {
		confs[daemon] = nil
	}
	for daemon := range confs {
		for _, s := range list {
			owner := ownerOf(s.line)
			if owner != "" && owner != daemon || owner == "" && !knows(daemon, s.line) {
				continue
			}
			part := &stanza{line: s.line}
			for _, b := range s.body {
				if inner := lineOwner(s, b); owner != "" || inner == "" || inner == daemon {
					part.body = append(part.body, b)
				}
			}
			if len(part.body) > 0 || len(s.body) == 0 {
				confs[daemon] = append(confs[daemon], part)
			}
		}
	}
	return confs
}

// calledFor gives the daemons that a configuration needs: those that its blocks,
// static routes and lines of interfaces are for, and bfdd for what has BFD watch a
// neighbour.
func calledFor(list []*stanza) map[string]bool {
	found := map[string]bool{}
	add := func(daemon string) {
		if daemon != "" && daemon != vtysh {
			found[daemon] = true
		}
	}
	for _, s := range list {
		add(ownerOf(s.line))
		add(monitor(s.line))
		for _, b := range s.body {
			add(monitor(b.line))
			add(lineOwner(s, b))
			for _, c := range b.body {
				add(monitor(c.line))
			}
		}
	}
	return found
}

// monitor gives bfdd for a line that has BFD (RFC 5880) watch a neighbour, such as
// "ip ospf bfd" or "neighbor 192.0.2.1 bfd"; "" for another.
func monitor(line string) string {
	words := strings.Fields(line)
	for i, w := range words {
		switch {
		case w == "description" || i == 0 && w == "no":
			return "" // free text follows
		case w == "bfd":
			return "bfdd"
		}
	}
	return ""
}

// lineOwner gives the one daemon that a line within a top-level block is for; ""
// if there may be several.
func lineOwner(s, inside *stanza) string {
	switch {
	case vnet.FRRCommand(s.line, "interface"):
		return interfaceOwner(inside.line)
	case vnet.FRRCommand(s.line, "vrf"):
		return ownerOf(inside.line)
	}
	return ""
}

// knows reports whether a daemon understands a top-level line that may be for
// several: what it does not, it does not only complain of, but takes the lines
// behind for a part of it.
func knows(daemon, line string) bool {
	switch daemon {
	case "staticd", "vrrpd", "bfdd", "pathd", "ldpd", "pbrd":
	default:
		return true
	}
	for _, policy := range []string{"route-map", "access-list", "ip prefix-list", "ipv6 prefix-list", "ipv6 access-list"} {
		if strings.HasPrefix(strings.TrimPrefix(line, "no "), policy+" ") {
			return false
		}
	}
	return daemon != "staticd" || !strings.HasPrefix(line, "interface ")
}

// vtysh stands for lines that no daemon knows.
const vtysh = "vtysh"

// owner says that lines that begin with a word sequence belong to one daemon.
type owner struct{ words, daemon string }

// ownerOf gives the one daemon that a top-level line is for; "" if there may be
// several.
func ownerOf(line string) string {
	return match(strings.TrimPrefix(line, "no "), []owner{
		{"service integrated-vtysh-config", vtysh},
		{"username", vtysh},
		{"line vty", vtysh},
		{"zebra", "zebra"},
		{"ip forwarding", "zebra"},
		{"ipv6 forwarding", "zebra"},
		{"ip router-id", "zebra"},
		{"ipv6 router-id", "zebra"},
		{"router-id", "zebra"},
		{"ip nht", "zebra"},
		{"ipv6 nht", "zebra"},
		{"ip protocol", "zebra"},
		{"ipv6 protocol", "zebra"},
		{"ip import-table", "zebra"},
		{"ip pim", "pimd"},
		{"ip multicast-routing", "pimd"},
		{"ip mroute", "staticd"},
		{"ipv6 pim", "pim6d"},
		{"pbr-map", "pbrd"},
		{"segment-routing", "pathd"},
		{"vrrp", "vrrpd"},
		{"bgp", "bgpd"},
		{"router ospf6", "ospf6d"},
		{"router ospf", "ospfd"},
		{"router isis", "isisd"},
		{"router bgp", "bgpd"},
		{"router ripng", "ripngd"},
		{"router rip", "ripd"},
		{"router eigrp", "eigrpd"},
		{"router pim", "pimd"},
		{"router pim6", "pim6d"},
		{"router babel", "babeld"},
		{"router openfabric", "fabricd"},
		{"ip route", "staticd"},
		{"ipv6 route", "staticd"},
		{"bfd", "bfdd"},
		{"mpls ldp", "ldpd"},
	})
}

// interfaceOwner does the same for a line of an interface block.
func interfaceOwner(line string) string {
	return match(strings.TrimPrefix(line, "no "), []owner{
		{"ip ospf", "ospfd"},
		{"ipv6 ospf6", "ospf6d"},
		{"ip router isis", "isisd"},
		{"ipv6 router isis", "isisd"},
		{"isis", "isisd"},
		{"ip rip", "ripd"},
		{"ipv6 ripng", "ripngd"},
		{"ip pim", "pimd"},
		{"ip igmp", "pimd"},
		{"ip mroute", "pimd"},
		{"ipv6 pim", "pim6d"},
		{"ipv6 mld", "pim6d"},
		{"ip router openfabric", "fabricd"},
		{"ipv6 router openfabric", "fabricd"},
		{"openfabric", "fabricd"},
		{"vrrp", "vrrpd"},
		{"babel", "babeld"},
		{"ip eigrp", "eigrpd"},
		{"ip nhrp", "nhrpd"},
		{"pbr-policy", "pbrd"},
		{"link-params", "zebra"},
		{"mpls enable", "zebra"},
		{"multicast", "zebra"},
		{"ip address", "zebra"},
		{"ipv6 address", "zebra"},
		{"ipv6 nd", "zebra"},
		{"shutdown", "zebra"},
		{"bandwidth", "zebra"},
	})
}

// match gives the daemon of the entry whose words begin the line, each of them in
// full or by its beginning; of several entries that one of which most words stand
// there in full.
func match(line string, owners []owner) string {
	daemon, most := "", -1
	words := strings.Fields(line)
	for _, o := range owners {
		if !vnet.FRRCommand(line, o.words) {
			continue
		}
		full := 0
		for i, w := range strings.Fields(o.words) {
			if words[i] == w {
				full++
			}
		}
		if full > most {
			daemon, most = o.daemon, full
		}
	}
	return daemon
}
