package format

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"trellis/internal/vnet"
)

const settable = `name: x
routing: ospf
nodes:
  New York: &ny {env: {A: 1}, files: {/etc/motd: {content: hello}}}
  denver: *ny
  austin: {<<: *ny, cpu: 1}
links:
  - [New York, denver]
  - {name: a.b, endpoints: [denver, austin], rate: 1mbit}
`

// TestSettingsAreAsIfWritten holds each list of settings to the file that has
// them written down.
func TestSettingsAreAsIfWritten(t *testing.T) {
	const (
		ny       = "env: {A: 1}, files: {/etc/motd: {content: hello}}}"
		anchored = "New York: &ny {" + ny + "\n  denver: *ny"
	)
	for _, c := range []struct {
		settings []string
		old, new string // what the file would have in place
	}{
		{[]string{"routing=static"}, "routing: ospf", "routing: static"},
		{[]string{"routing.protocol=static"}, "routing: ospf", "routing: static"},
		{[]string{"routing.timers=default", "routing.daemon=bird"}, "routing: ospf", "routing: {protocol: ospf, timers: default, daemon: bird}"},
		{[]string{"routing.timers.hello=3s", "routing.timers.dead=9s"}, "routing: ospf", "routing: {protocol: ospf, timers: {hello: 3s, dead: 9s}}"},
		{[]string{"name=y", "name=z"}, "name: x", "name: z"},
		{[]string{"defaults.node.memory=64MiB", "defaults.link.mtu=1400"}, "routing: ospf", "routing: ospf\ndefaults: {node: {memory: 64MiB}, link: {mtu: 1400}}"},
		{[]string{"addressing.ipv4=172.16.0.0/12"}, "routing: ospf", "routing: ospf\naddressing: {ipv4: 172.16.0.0/12}"},
		{[]string{"addressing=none"}, "routing: ospf", "routing: ospf\naddressing: none"},
		{[]string{"nodes.new-york.cpu=0.5"}, anchored, "New York: {cpu: 0.5, " + ny + "\n  denver: &ny {" + ny},
		{[]string{"nodes.New York.env.A=2"}, anchored, "New York: {env: {A: 2}, files: {/etc/motd: {content: hello}}}\n  denver: &ny {" + ny},
		{[]string{"nodes.denver.cpu=2"}, "denver: *ny", "denver: {<<: *ny, cpu: 2}"},
		{[]string{"nodes.denver.env.A=2"}, "denver: *ny", "denver: {<<: *ny, env: {A: 2}}"},
		{[]string{"nodes.austin.env.B=2"}, "{<<: *ny, cpu: 1}", "{<<: *ny, cpu: 1, env: {A: 1, B: 2}}"},
		{[]string{`nodes.austin.sysctls."net.ipv4.ip_forward"=0`}, "{<<: *ny, cpu: 1}", `{<<: *ny, cpu: 1, sysctls: {net.ipv4.ip_forward: 0}}`},
		{[]string{"links.new-york-denver.rate=5mbit"}, "[New York, denver]", "{endpoints: [New York, denver], rate: 5mbit}"},
		{[]string{"links.a.b.rate.up=2mbit"}, "rate: 1mbit", "rate: {up: 2mbit, down: 1mbit}"},
		{[]string{"links.a.b.routing.passive=true"}, "rate: 1mbit", "rate: 1mbit, routing: {passive: true}"},
		{[]string{"links=[]"}, "links:\n  - [New York, denver]\n  - {name: a.b, endpoints: [denver, austin], rate: 1mbit}\n", ""},
	} {
		t.Run(strings.Join(c.settings, " "), func(t *testing.T) {
			got, _, err := Read("x.yaml", []byte(settable), nil, Options{Set: c.settings})
			if err != nil {
				t.Fatal(err)
			}
			written := strings.Replace(settable, c.old, c.new, 1)
			if written == settable {
				t.Fatalf("the file has no %q", c.old)
			}
			want, _, err := Read("x.yaml", []byte(written), nil)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got, byValue...); diff != "" {
				t.Errorf("(-written +set):\n%s", diff)
			}
		})
	}
}

func TestBadSettingsAreNamed(t *testing.T) {
	for setting, want := range map[string]string{
		"routing":                    `it is not of the form KEY=VALUE; write it like routing.protocol=static`,
		"=x":                         `it is not of the form KEY=VALUE; `,
		"routing..protocol=x":        `"routing..protocol" is not a key; `,
		"ruting.protocol=static":     `unknown key "ruting" in the network; did you mean "routing"?`,
		"routing.protcol=static":     `unknown key "protcol" in routing; did you mean "protocol"?`,
		"routing.protocol=sttic":     `routing: protocol is "sttic"; did you mean "static"? (none, static, ospf, isis, bgp or rip)`,
		"routing.protocol={":         `"{" cannot be read as a YAML value; put it in quotes`,
		"nodes.denvr.cpu=1":          `there is no node "denvr"; did you mean "denver"?`,
		"nodes.denver.cpu=lots":      `node "denver": cpu is "lots"; write a number`,
		"nodes.denver.cpu=9999":      `node "denver": cpu 9999 is out of range; `,
		"nodes.denver.cpu.cores=1":   `nodes.denver.cpu holds a single value or a list, and no key "cores"; set it as a whole`,
		"links.new-york-denvr.mtu=9": `there is no link "new-york-denvr"; did you mean "new-york-denver"?`,
		"links.a.b.mtu=9":            `link "a.b": mtu is "9"; write a whole number from 68 to 65535`,
		"links.a.b=9":                `there is no link "a"; `,
		"links=9":                    `links must be a list, not the single value "9"; `,
		"name=":                      `name has no value; `,
	} {
		text := settable
		if strings.Contains(setting, "cpu.cores") {
			text = strings.Replace(text, "denver: *ny", "denver: {cpu: 1}", 1)
		}
		_, _, err := Read("x.yaml", []byte(text), nil, Options{Set: []string{setting}})
		var errs Errors
		if !errors.As(err, &errs) || len(errs) != 1 {
			t.Errorf("%s: got %v", setting, err)
			continue
		}
		if got := err.Error(); !strings.HasPrefix(got, "--set "+setting+": "+want) {
			t.Errorf("got  %s\nwant --set %s: %s", got, setting, want)
		}
	}
}

func TestSettingsOverGraphML(t *testing.T) {
	path := filepath.Join("testdata", "zoo.graphml")
	plain, warnings, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	v, again, err := Load(path, Options{Set: []string{"routing.protocol=bgp", "routing.timers=default", "name=other", "defaults.node.memory=64MiB", "nodes.malmo.kind=host", "nodes.malmo.routing=none"}})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(warnings, again); diff != "" {
		t.Errorf("the warnings differ:\n%s", diff)
	}
	if v.Name != "other" || v.Routing.Protocol != vnet.BGP || v.Routing.Timers != vnet.TimersDefault || len(v.Nodes) != len(plain.Nodes) || len(v.Links) != len(plain.Links) {
		t.Errorf("got %s, %+v, %d nodes, %d links", v.Name, v.Routing, len(v.Nodes), len(v.Links))
	}
	for _, n := range v.Nodes {
		if n.Memory != 64<<20 || (n.Kind == vnet.Host) != (n.Name == "malmo") {
			t.Errorf("node %s has %d bytes and is a %s", n.Name, n.Memory, n.Kind)
		}
	}
	if same, _, err := Load(path, Options{Set: []string{"routing=ospf"}}); err != nil || cmp.Diff(plain, same, byValue...) != "" {
		t.Errorf("a setting that changes nothing: %v\n%s", err, cmp.Diff(plain, same, byValue...))
	}
	for setting, want := range map[string]string{
		"routing.protocol=opsf":       `--set routing.protocol=opsf: routing: protocol is "opsf"; did you mean "ospf"? (none, static, ospf, isis, bgp or rip)`,
		"addressing.ipv4=10.0.0.0/30": path + `: no room for `,
	} {
		if _, _, err := Load(path, Options{Set: []string{setting}}); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", setting, err, want)
		}
	}
}

func TestWhatTheMachineLacksIsRefusedWithItsLine(t *testing.T) {
	text := []byte("name: x\nrouting: ospf\nnodes: {a: {}, b: {}}\nlinks:\n  - endpoints: [a, b]\n    delay: 3ms\n")
	machine := &vnet.Machine{Programs: map[string]bool{"zebra": true, "ospfd": true, "ospf6d": true}}
	_, _, err := Read("x.yaml", text, nil, Options{Machine: machine})
	if err == nil || !strings.HasPrefix(err.Error(), `x.yaml:6: link "a-b" asks for delay, which needs netem`) {
		t.Errorf("got %v", err)
	}
	if _, _, err := Read("x.yaml", text, nil, Options{Machine: machine, Set: []string{"links.a-b.delay=0"}}); err != nil {
		t.Error(err)
	}
	machine.Programs["ospfd"] = false
	if _, _, err = Load(filepath.Join("testdata", "zoo.graphml"), Options{Machine: machine}); err == nil || !strings.Contains(err.Error(), `node "malmo" needs ospfd, which this machine does not have`) {
		t.Errorf("got %v", err)
	}
}
