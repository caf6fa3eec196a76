package config

import (
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"trellis/internal/pki"
)

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "trellis.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestEverythingIsRead(t *testing.T) {
	path := write(t, `
host: alpha
roles: [agent, vnp, pip, agent]
uplinks:
  - {interface: eth1, addresses: [192.0.2.1, "2001:db8::1"], xdp: native}
  - eth2
capacity: {memory: 16GiB, cpu: 1.5}
listen: 192.0.2.1:7443
store: {endpoints: ["https://192.0.2.9:2379", "https://[2001:db8::9]:2379/"]}
tls: {ca: ca.pem, cert: certs/alpha.pem, key: /etc/alpha-key.pem}
metrics: :9744
images: {directories: [/srv/images/], registries: [docker.io, "reg.example:5000"], cache: 20GiB, size: 2GiB, files: 100000, time: 5m}
`)
	got, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Dir(path)
	want := &Config{
		File: path, Host: "alpha", Roles: []Role{VNP, PIP, Agent},
		Uplinks: []Uplink{
			{Interface: "eth1", Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}, XDP: Native},
			{Interface: "eth2", XDP: Auto},
		},
		Memory: 16 << 30, CPU: 1.5, Listen: "192.0.2.1:7443",
		StoreEndpoints: []string{"https://192.0.2.9:2379", "https://[2001:db8::9]:2379"},
		TLS:            pki.Files{CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, "certs/alpha.pem"), Key: "/etc/alpha-key.pem"},
		Metrics:        ":9744",
		Images: Images{
			Directories: []string{"/srv/images"}, Registries: []string{"docker.io", "reg.example:5000"},
			Cache: 20 << 30, Size: 2 << 30, Files: 100000, Time: 5 * time.Minute,
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("read %+v\nwant %+v", got, want)
	}
}

func TestNothingIsNeeded(t *testing.T) {
	for _, text := range []string{"", "# nothing\n", "uplinks: [eth1]\n", "metrics: 127.0.0.1:9744"} {
		c, err := Read(write(t, text))
		if err != nil {
			t.Errorf("%q: %v", text, err)
		} else if !c.Has(VNP) || !c.Has(PIP) || !c.Has(Agent) {
			t.Errorf("%q: roles %v", text, c.Roles)
		}
	}
}

const certificates = "tls: {ca: ca.pem, cert: a.pem, key: a-key.pem}\n"

// TestMistakesAreNamed wants each mistake with its line and a remedy.
func TestMistakesAreNamed(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"host: alpha\nuplink: [eth1]\n", `:2: unknown key "uplink" in the configuration; did you mean "uplinks"?`},
		{"host: alpha\nfrobnicate: 1\n", `:2: unknown key "frobnicate" in the configuration; the keys are capacity, host,`},
		{"store:\n  listn: 192.0.2.1:1\n", `:2: unknown key "listn" in store; did you mean "listen"?`},
		{"uplinks:\n- {interface: eth1, adresses: [192.0.2.1]}\n", `:2: unknown key "adresses" in uplinks; did you mean "addresses"?`},
		{"host: a\nhost: b\n", `:2: key "host" is there twice in the configuration (first in line 1); keep one of them`},
		{"host: a/b\n", `:1: "a/b" cannot be a host's name`},
		{"host:\n", ":1: host has no value"},
		{"roles: [vpn]\n", `:1: "vpn" is no role; did you mean "vnp"?`},
		{"roles: []\n", ":1: roles is empty"},
		{"roles: [vnp, agent]\n", ":1: the roles vnp and pip go together"},
		{"roles: [agent]\n", ":1: a host without the roles vnp and pip needs others"},
		{"roles: [vnp, pip]\nuplinks: [eth1]\n", ":2: uplinks are the agent's"},
		{"uplinks: [eth1, eth1]\n", ":1: the uplink eth1 is there twice"},
		{"uplinks:\n- {xdp: auto}\n", ":2: an uplink has no interface"},
		{"uplinks: [averyveryverylongname]\n", "cannot be the name of an interface"},
		{"uplinks: [{interface: eth1, xdp: fast}]\n", `"fast" is no XDP mode; write one of auto, native, generic`},
		{"uplinks: [{interface: eth1, addresses: [192.0.2.1/24]}]\n", "has a prefix length"},
		{"uplinks: [{interface: eth1, addresses: [192.0.2.300]}]\n", "is no IP address"},
		{"uplinks: [{interface: eth1, addresses: [127.0.0.1]}]\n", "cannot reach 127.0.0.1"},
		{"uplinks: {eth1: native}\n", ":1: uplinks must be a list, not a mapping"},
		{"capacity: {memory: 16}\n", "has no unit"},
		{"capacity: {cpu: many}\n", "is no number of cores"},
		{"capacity: {cpu: NaN}\n", "is no number of cores"},
		{"metrics: 9744\n", "write HOST:PORT"},
		{"listen: 192.0.2.1:7443\n", ":1: listen needs certificates"},
		{"listen: 192.0.2.1:7443\n" + certificates, ":1: listen is for hosts that share a store"},
		{"store: {listen: 192.0.2.1:2379}\n" + certificates, ":1: other hosts must reach the agent"},
		{"listen: 0.0.0.0:7443\nstore: {listen: 192.0.2.1:2379}\n" + certificates, ":1: listen: \"0.0.0.0:7443\" is not where others reach this host"},
		{"listen: 192.0.2.1:7443\nstore: {listen: 192.0.2.1}\n" + certificates, ":2: store.listen: \"192.0.2.1\" is no address"},
		{"listen: 192.0.2.1:7443\nstore: {listen: 192.0.2.1:2379, endpoints: ['https://192.0.2.2:2379']}\n" + certificates, ":2: store has both"},
		{"listen: 192.0.2.1:7443\nstore: {endpoints: ['http://192.0.2.2:2379']}\n" + certificates, ":2: store.endpoints: \"http://192.0.2.2:2379\" is not https"},
		{"listen: 192.0.2.1:7443\nstore: {endpoints: [192.0.2.2]}\n" + certificates, ":2: store.endpoints: \"192.0.2.2\" is no address of a store"},
		{"listen: 192.0.2.1:7443\nstore: {endpoints: []}\n" + certificates, ":2: store.endpoints is empty"},
		{"store: {endpoints: ['https://192.0.2.2:2379']}\nlisten: 192.0.2.1:7443\ntls: {ca: ca.pem}\n", ":3: tls is not complete"},
		{"host: [alpha\n", "not valid YAML"},
		{"- alpha\n", ":1: the configuration must be a mapping, not a list"},
		{"host: alpha\n---\nhost: beta\n", "second document"},
		{"images: {directory: /srv}\n", `unknown key "directory" in images; did you mean "directories"?`},
		{"images: {directories: [images]}\n", `"images" is no absolute path`},
		{"images: {directories: [/srv/..]}\n", "/ is the machine itself"},
		{"images: {registries: [docker.io/library]}\n", `"docker.io/library" is no registry; write HOST or HOST:PORT`},
		{"images: {registries: ['https://docker.io']}\n", "is no registry"},
		{"images: {size: 0}\n", "images.size"},
		{"images: {cache: 1KiB}\n", "at least 1MiB"},
		{"images: {cache: 1GiB, size: 2GiB}\n", "images.size is larger than images.cache"},
		{"images: {files: 0}\n", "images.files"},
		{"images: {time: 5}\n", "like 10m"},
		{"images:\n  time: -5m\n", ":2: images.time"},
		{"roles: [vnp, pip]\nimages: {size: 1GiB}\n", ":2: images are the agent's"},
		{"host: &a alpha\nmetrics: *a\n", `metrics: "alpha" is no address`},
	} {
		path := write(t, c.text)
		_, err := Read(path)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q\ngives %v\nwant  %s", c.text, err, c.want)
			continue
		}
		if !strings.HasPrefix(err.Error(), path+":") {
			t.Errorf("%v does not begin with file and line", err)
		}
	}
}

// TestNoneIsNotUnsaid: an empty list allows nothing, and is not as if it were not there.
func TestNoneIsNotUnsaid(t *testing.T) {
	c, err := Read(write(t, "images: {directories: [], registries: []}\n"))
	if err != nil || c.Images.Directories == nil || c.Images.Registries == nil {
		t.Errorf("%+v, %v", c, err)
	}
	if c := Alone(); c.Images.Directories != nil || c.Images.Registries != nil {
		t.Errorf("%+v", c.Images)
	}
}

func TestAllMistakesAreTold(t *testing.T) {
	_, err := Read(write(t, "hots: alpha\nroles: [vpn]\nmetrics: x\n"))
	if err == nil || strings.Count(err.Error(), "\n") != 2 {
		t.Errorf("three mistakes are told as %v", err)
	}
}

func TestMissingFileIsNamed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "none.yaml")
	if _, err := Read(path); err == nil || !strings.Contains(err.Error(), "there is no configuration "+path) {
		t.Errorf("error %v", err)
	}
}

func FuzzRead(f *testing.F) {
	f.Add("host: alpha\nuplinks: [eth1]\n")
	f.Add("store: {listen: 192.0.2.1:2379}\nlisten: a:1\n" + certificates)
	f.Fuzz(func(t *testing.T, text string) {
		c, err := parse("f", "/", []byte(text))
		if (c == nil) == (err == nil) {
			t.Errorf("%q gives %v and %v", text, c, err)
		}
	})
}
