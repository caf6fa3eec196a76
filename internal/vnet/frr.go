package vnet

import (
	"net/netip"
	"path"
	"strings"
)

// FRR is https://frrouting.org.
const FRR Daemon = "frr"

// FRRDirectory holds FRR's configuration, as Debian and Ubuntu build it.
const FRRDirectory = "/etc/frr"

var frrKind = DaemonKind{
	Name: FRR, Title: "FRR", Package: "frr",
	Dirs:     []string{"/usr/lib/frr", "/usr/libexec/frr"},
	Programs: []string{"zebra", "ospfd", "ospf6d", "isisd", "bgpd", "ripd", "ripngd"},
	Speaks: map[Protocol][]string{
		OSPF: {"ospfd", "ospf6d"}, ISIS: {"isisd"}, BGP: {"bgpd"}, RIP: {"ripd", "ripngd"},
	},
	More:       FRRDaemons,
	Tried:      []string{"8.4", "10.3"},
	Unnumbered: []Protocol{OSPF, ISIS},
	configures: isFRRConfig,
	addressed:  frrAddressed,
}

// isFRRConfig reports whether FRR's daemons, or Debian's list of them, are
// configured by a file of that path.
func isFRRConfig(p string) bool {
	dir, name := path.Split(p)
	return dir == FRRDirectory+"/" && (name == "daemons" || strings.HasSuffix(name, ".conf") && name != "vtysh.conf")
}

// frrAddressed finds the interfaces that a configuration of FRR gives addresses to.
func frrAddressed(text string) []ownAddress {
	var found []ownAddress
	current := ""
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		switch {
		case len(words) >= 2 && FRRCommand(line, "interface"):
			current = words[1]
		case len(words) > 0 && line[0] != ' ' && line[0] != '\t' && line[0] != '!':
			current = "" // another context
		case current == "" || len(words) < 3:
		case FRRCommand(line, "ip address") || FRRCommand(line, "ipv6 address"):
			// What is no prefix, as in `ip address ADDRESS peer PREFIX`, has no subnet to share.
			p, _ := netip.ParsePrefix(words[2])
			found = append(found, ownAddress{iface: current, prefix: p})
		case words[0] == "vrrp" && len(words) >= 4 && (words[2] == "ip" || words[2] == "ipv6"):
			if a, err := netip.ParseAddr(words[3]); err == nil {
				found = append(found, ownAddress{iface: current, prefix: netip.PrefixFrom(a, a.BitLen()), shared: true})
			}
		}
	}
	return found
}

// FRRCommand reports whether a line of configuration begins with a command of FRR's,
// given in full: FRR takes each word by its beginning. That another command may begin
// alike is for the caller to know.
func FRRCommand(line, command string) bool {
	words := strings.Fields(line)
	for i, full := range strings.Fields(command) {
		if i >= len(words) || !strings.HasPrefix(full, words[i]) || full == "ipv6" && words[i] == "ip" || full == "router-id" && words[i] == "router" {
			return false // or a word of its own
		}
	}
	return true
}
