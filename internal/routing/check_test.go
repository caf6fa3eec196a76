package routing

import (
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"testing"

	"trellis/internal/vnet"
)

// TestChecksNameTheLine has the daemons' own programs read configurations with
// mistakes, and one without.
func TestChecksNameTheLine(t *testing.T) {
	for name, c := range map[string]struct {
		path, text string
		want       []Complaint
	}{
		"frr": {"/etc/frr/frr.conf", "interface eth1\n ip ospf aera 0\n!\nroter bgp 65000\n", []Complaint{
			{2, "Unknown command: ip ospf aera 0"}, {4, "Unknown command: roter bgp 65000"},
		}},
		"frr daemon": {"/etc/frr/ospfd.conf", "router ospf\n redistribute conected\n", []Complaint{{2, "Unknown command: redistribute conected"}}},
		"frr good":   {"/etc/frr/frr.conf", "interface eth1\n vrrp 5\n!\nrouter ospf\n network 10.0.0.0/8 area 0\n", nil},
		"bird":       {"/etc/bird/bird.conf", "router id 1.1.1.1;\nprotocol ospf v2 { area 0 { interface \"eth1\" { hllo 5; }; }; }\n", []Complaint{{2, "syntax error, unexpected CF_SYM_UNDEFINED"}}},
		"bird good":  {"/etc/bird/bird.conf", "router id 1.1.1.1;\nprotocol device {}\n", nil},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			n := &vnet.Node{Files: []vnet.File{{Path: c.path, Content: []byte(c.text)}, {Path: "/etc/frr/daemons"}, {Path: "/etc/motd"}}}
			file := filepath.Join(dir, c.path)
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			writeFile(t, file, []byte(c.text))
			writeFile(t, filepath.Join(dir, "vtysh.conf"), nil)
			checks := Checks(n, dir)
			if len(checks) != 1 || checks[0].Path != c.path {
				t.Fatalf("checks %v, want one of %s", checks, c.path)
			}
			if _, err := os.Stat(checks[0].Argv[0]); err != nil {
				t.Skipf("needs %s: install the package frr or bird2", checks[0].Argv[0])
			}
			out, err := exec.Command(checks[0].Argv[0], checks[0].Argv[1:]...).CombinedOutput()
			if (err != nil) != (c.want != nil) {
				t.Errorf("%v: %v\n%s", checks[0].Argv, err, out)
			}
			if got := ParseComplaints(string(out)); !reflect.DeepEqual(got, c.want) {
				t.Errorf("complaints %+v, want %+v", got, c.want)
			}
		})
	}
}
