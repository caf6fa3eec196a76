package sandbox

import (
	"errors"
	"net/netip"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"trellis/internal/yamlfile"
)

func TestEveryExampleReads(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("..", "..", "examples", "sandbox-*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d examples, %v", len(files), err)
	}
	for _, path := range files {
		if s, err := ReadFile(path); err != nil || len(s.Hosts) < 2 {
			t.Errorf("%s: %+v, %v", path, s, err)
		}
	}
}

func TestAFileSaysAllOfASandbox(t *testing.T) {
	got, err := parse("f", []byte(`
name: lab
hosts:
  zulu: &small {memory: 512MiB, cpu: 0.5}
  alpha: *small
  mike:
underlay: {ipv6: "fd00:1::/64", mtu: 9000}
`))
	if err != nil {
		t.Fatal(err)
	}
	want := &Spec{
		Name:     "lab",
		Hosts:    []Host{{"zulu", 512 << 20, 0.5}, {"alpha", 512 << 20, 0.5}, {"mike", 0, 0}},
		Underlay: Underlay{IPv6: netip.MustParsePrefix("fd00:1::/64"), MTU: 9000},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("read %+v, want %+v", got, want)
	}
}

func TestAFileThatSaysLittleGetsTheDefaults(t *testing.T) {
	for _, text := range []string{"name: a\nhosts: {b: }\n", "name: a\nhosts: {b: {}}\nunderlay:\n", "name: a\nhosts: {b: {}}\nunderlay: {mtu: 1500}"} {
		got, err := parse("f", []byte(text))
		if err != nil {
			t.Errorf("%q: %v", text, err)
		} else if got.Underlay != defaultUnderlay {
			t.Errorf("%q: the underlay is %+v", text, got.Underlay)
		}
	}
}

func TestMistakesInAFileAreReportedWithTheirLine(t *testing.T) {
	const hosts = "name: a\nhosts: {b: {}, c: {}}\n"
	for text, want := range map[string]string{
		"":                                        `f:1: the file is empty; name a sandbox and its hosts`,
		"name: a\n---\nname: b\n":                 `f:2: the file holds a second document; describe one sandbox in each file`,
		"name: [a\n":                              `f:2: not valid YAML: `,
		"hosts: {b: {}}\n":                        `f:1: the sandbox has no name; add one, like `,
		"name: a\n":                               `f:1: the sandbox has no hosts; add some, like `,
		"name: a\nhosts: {}\n":                    `f:2: there are 0 hosts; name 1 to 64`,
		"name: a\nhosts: [b]\n":                   "f:2: hosts must be a mapping, not a list; write it as `key: value` lines",
		"name: A\nhosts: {b: {}}\n":               `f:1: the sandbox's name "A"; use up to 32 of a-z`,
		"name: ../a\nhosts: {b: {}}\n":            `f:1: the sandbox's name "../a"; use up to 32 of a-z`,
		"name: a\nhosts: {fabric: {}}\n":          `f:2: the host's name "fabric" is the sandbox's own; choose another`,
		"name: a\nhosts:\n  B_: {}\n":             `f:3: the host's name "B_"; use up to 15 of a-z`,
		"name: a\nhosts:\n  b: {}\n  b: {}\n":     `f:4: key "b" is there twice in hosts (first in line 3); keep one of them`,
		"name: a\nhosts: {b: {memroy: 1GiB}}":     `f:2: unknown key "memroy" in host b; did you mean "memory"?`,
		"name: a\nhosts: {b: {memory: 10}}":       `f:2: size "10" has no unit; write a size like 96MiB or 1GB`,
		"name: a\nhosts: {b: {memory: 0B}}":       `f:2: memory "0B" is no room for a node; write a size like 1GiB`,
		"name: a\nhosts: {b: {cpu: -1}}":          `f:2: cpu is "-1"; write a number of cores, like 2 or 0.5`,
		"name: a\nhosts: {b: {cpu: NaN}}":         `f:2: cpu is "NaN"; write a number of cores, like 2 or 0.5`,
		"name: a\nhosts: {b: {cpu: [1]}}":         `f:2: cpu must be a single value, not a list; write a single value`,
		"name: a\nhost: {b: {}}\n":                `f:2: unknown key "host" in the file; did you mean "hosts"?`,
		hosts + "underlay: {mtu: 1200}":           `f:3: mtu is "1200"; write a number of bytes from 1322 to 65535`,
		hosts + "underlay: {mtu: 1330}":           `f:3: mtu 1330 is too small for tunnels over IPv6; give 1342 at least, or name ipv4 alone`,
		hosts + "underlay: {mtu: big}":            `f:3: mtu is "big"; write a number of bytes from 1322 to 65535`,
		hosts + "underlay: {ipv4: 10.0.0.1}":      `f:3: ipv4 "10.0.0.1" is no prefix; write the first address and a length`,
		hosts + "underlay: {ipv4: 10.0.0.1/8}":    `f:3: ipv4 "10.0.0.1/8" is no prefix; write the first address and a length`,
		hosts + "underlay: {ipv4: 10.0.0.0/31}":   `f:3: ipv4 10.0.0.0/31 holds 2 addresses, and 2 hosts need 4; write a shorter prefix`,
		hosts + "underlay: {ipv4: \"fd00::/64\"}": `f:3: ipv4 is fd00::/64; write a prefix of that family`,
		hosts + "underlay: {ipv4: 224.0.0.0/8}":   `f:3: ipv4 is 224.0.0.0/8, whose addresses no router forwards; write another, like 192.0.2.0/24`,
	} {
		s, err := parse("f", []byte(text))
		var errs yamlfile.Errors
		if !errors.As(err, &errs) || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %+v, %v\nwant %s", text, s, err, want)
		}
	}
}

func TestAllMistakesAreReportedAtOnce(t *testing.T) {
	_, err := parse("f", []byte("name: A\nhosts:\n  B: {}\n  c: {cpus: 1}\nunderlay: {mtu: 1}\n"))
	var errs yamlfile.Errors
	if !errors.As(err, &errs) || len(errs) != 4 {
		t.Fatalf("got %v", err)
	}
	for i, line := range []int{1, 3, 4, 5} {
		if errs[i].Line != line {
			t.Errorf("mistake %d is in line %d, want %d: %v", i, errs[i].Line, line, err)
		}
	}
}

func TestEachLinkHasItsAddresses(t *testing.T) {
	u := defaultUnderlay
	for i, want := range map[int]string{
		0:   "[192.0.2.1 2001:db8::1] [192.0.2.0 2001:db8::]",
		2:   "[192.0.2.5 2001:db8::5] [192.0.2.4 2001:db8::4]",
		127: "[192.0.2.255 2001:db8::ff] [192.0.2.254 2001:db8::fe]",
	} {
		l := u.link(i)
		var got []string
		for _, addrs := range [][]netip.Addr{l.host, l.router} {
			var all []string
			for _, a := range addrs {
				all = append(all, a.String())
			}
			got = append(got, "["+strings.Join(all, " ")+"]")
		}
		if text := strings.Join(got, " "); text != want {
			t.Errorf("link %d has %s, want %s", i, text, want)
		}
	}
	if got := offset(netip.MustParseAddr("10.0.255.255"), 514).String(); got != "10.1.2.1" {
		t.Errorf("the 514th address after 10.0.255.255 is %s", got)
	}
}
