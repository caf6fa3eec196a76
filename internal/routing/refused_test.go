package routing

import (
	"testing"

	"trellis/internal/vnet"
)

func TestRefusedLinesOfTheUsersConfigurationAreNamed(t *testing.T) {
	file := func(path, text string) vnet.File { return vnet.File{Path: path, Content: []byte(text)} }
	d := Daemons{Kind: vnet.FRR, Services: []Service{{Name: "zebra"}, {Name: "ospfd"}, {Name: "bfdd"}}, Files: []vnet.File{
		file("/etc/frr/zebra.conf", "bfd\nrooter ospf\n"),
		file("/etc/frr/ospfd.conf", "bfd\nrooter ospf\ninterface eth1\n ip ospf aera 0\n"),
		file("/etc/frr/bfdd.conf", "bfd\nrooter ospf\n"),
	}}
	own := []vnet.File{file("/etc/frr/frr.conf", "bfd\n!\ninterface eth1\n ip ospf aera 0\nrooter ospf\n")}
	line := func(text string) string {
		return "2026/11/23 09:06:21 OSPF: [SHWNK-NWT5S][EC 100663304] No such command on config line 3: " + text + "\n"
	}
	for name, c := range map[string]struct {
		logs map[string]string
		want string
	}{
		"nothing": {map[string]string{"zebra": "started\n"}, ""},
		// bfdd takes what the others do not know.
		"a line for one": {map[string]string{"zebra": line("bfd"), "ospfd": line("bfd")}, ""},
		"refused by all": {map[string]string{"zebra": line("rooter ospf"), "ospfd": line("rooter ospf"), "bfdd": line("rooter ospf")}, "zebra refuses line 5 of /etc/frr/frr.conf: rooter ospf"},
		"in a block":     {map[string]string{"ospfd": line(" ip ospf aera 0")}, "ospfd refuses line 4 of /etc/frr/frr.conf: ip ospf aera 0"},
		// vtysh loads line by line, for one daemon after the other.
		"by vtysh":    {map[string]string{"vtysh": "line 5: % Unknown command[4]:  rooter ospf\nline 4: % Unknown command[17]:  ip ospf aera 0\n"}, "vtysh refuses line 5 of /etc/frr/frr.conf: rooter ospf"},
		"by a daemon": {map[string]string{"vtysh": "line 4: Failure to communicate[13] to ospfd, line:  ip ospf aera 0\n\n"}, "ospfd refuses line 4 of /etc/frr/frr.conf: ip ospf aera 0"},
		"mended":      {map[string]string{"vtysh": "line 3: % Unknown command[4]:  router ospff\n"}, ""},
		// The log outlives the configuration that it is of.
		"mended since": {map[string]string{"ospfd": line("router ospff")}, ""},
	} {
		if got := d.Refused(own, c.logs); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
