package routing

import "strings"

// splitIntegrated deals an integrated FRR configuration out to daemons: the
// named ones, and those that its router blocks and static routes call for. What
// has one owner goes to it alone; everything else goes to all, since a daemon
// passes over what it does not know with a warning.
func splitIntegrated(text string, daemons []string) map[string][]*stanza {
	confs := map[string][]*stanza{}
	for _, daemon := range daemons {
		confs[daemon] = nil
	}
	list := parseStanzas(text)
	for _, s := range list {
		if daemon := ownerOf(s.line); daemon != "" {
			confs[daemon] = nil
		}
	}
	for daemon := range confs {
		for _, s := range list {
			owner := ownerOf(s.line)
			if owner != "" && owner != daemon {
				continue
			}
			part := &stanza{line: s.line}
			for _, b := range s.body {
				if inner := interfaceOwner(b.line); owner != "" || inner == "" || inner == daemon {
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

// owner says that lines that begin with a word sequence belong to one daemon.
type owner struct{ words, daemon string }

// ownerOf gives the one daemon that a top-level line is for; "" if there may be
// several.
func ownerOf(line string) string {
	return match(line, []owner{
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
