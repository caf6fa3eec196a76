package routing

import (
	"slices"
	"strings"
)

// splitIntegrated deals an integrated FRR configuration out to daemons: the
// named ones, and those that its blocks, static routes and lines of interfaces
// call for. What has one owner goes to it alone; everything else goes to all,
// since a daemon passes over what it does not know with a warning. What only
// vtysh knows goes to none.
func splitIntegrated(text string, daemons []string) map[string][]*stanza {
	confs := map[string][]*stanza{}
	for _, daemon := range daemons {
		confs[daemon] = nil
	}
	list := slices.DeleteFunc(parseStanzas(text), func(s *stanza) bool { return ownerOf(s.line) == vtysh })
	for _, s := range list {
		if daemon := ownerOf(s.line); daemon != "" {
			confs[daemon] = nil
		}
		for _, b := range s.body {
			if daemon := interfaceOwner(b.line); daemon != "" && strings.HasPrefix(s.line, "interface ") {
				confs[daemon] = nil
			}
		}
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

// lineOwner gives the one daemon that a line within a top-level block is for; ""
// if there may be several.
func lineOwner(s, inside *stanza) string {
	switch {
	case strings.HasPrefix(s.line, "interface "):
		return interfaceOwner(inside.line)
	case strings.HasPrefix(s.line, "vrf "):
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

// match gives the daemon of the first entry whose words begin the line.
func match(line string, owners []owner) string {
	for _, o := range owners {
		if rest, ok := strings.CutPrefix(line, o.words); ok && (rest == "" || rest[0] == ' ') {
			return o.daemon
		}
	}
	return ""
}
