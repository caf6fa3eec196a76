package format

// yamlCase is a document, and what a good one must or a bad one must not hold.
type yamlCase struct {
	name string
	yaml string
	// want is, for a bad document, what its errors must read, one line each,
	// without the file's name: "LINE: what; remedy".
	want []string
	// semantic marks a mistake that a JSON schema cannot see, such as a duplicate.
	semantic bool
}

// two is a network of two nodes, for cases about links.
const two = "name: x\nnodes: {a: {}, b: {}}\n"

var goodYAML = []yamlCase{
	{name: "the smallest", yaml: "name: x\nnodes: {a: }\n"},
	{name: "what is meant to be there twice", yaml: "name: x\nnodes: {a: {anycast: 192.0.2.1}, b: {anycast: 192.0.2.1}, h: {kind: host}, i: {kind: host}}\nlinks:\n  - {endpoints: [{node: a, addresses: 192.168.1.1/24}, h], overlap: true}\n  - {endpoints: [{node: b, addresses: 192.168.1.1/24}, {node: i, addresses: 192.168.1.0/23}], overlap: true}\n"},
	{name: "links in every form", yaml: "name: x\nnodes: {a: {}, b: {}, c: {}}\nlinks:\n  - [a, b]\n  - [\"a:wan0\", \"b:eth9\"]\n  - endpoints: [a, c]\n  - endpoints: [{node: a}, {node: b, interface: e0, mac: '02:00:00:00:00:01', mtu: 1400, addresses: [192.0.2.1/24, '2001:db8::1/64'], cost: 3}]\n  - {name: hub, type: lan, endpoints: [a, b, {node: c, rate: {up: 1mbit, down: 2mbit}}], delay: 3ms}\n"},
	{name: "a node by several interfaces", yaml: two + "links:\n  - {endpoints: [a, a, b], type: lan}\n  - {endpoints: ['a:x1', 'a:x2', b, 'b:x9'], type: lan}\n"},
	{name: "ends of a LAN that are pulled", yaml: two + "links:\n  - {endpoints: [{node: a, state: down}, {node: b, down: false}], type: lan}\n"},
	{name: "links with every key", yaml: two + "links:\n  - {endpoints: [a, b], name: l, type: p2p, state: down, rate: 1.5gbit, delay: 12ms, jitter: 300us, loss: 0.1%, mtu: 9000, cost: 10}\n  - {endpoints: [a, b], down: true, rate: {up: 1mbit}, delay: {down: 1ms}, loss: 0.001}\n  - {endpoints: [a, b], down: false, rate: unlimited}\n"},
	{name: "a node with every key", yaml: `name: x
nodes:
  a:
    image: docker.io/library/alpine:3
    cmd: [/bin/sleep, inf]
    cpu: 0.25
    memory: 96MiB
    pids: 64
    disk: 1GB
    env: {A: 1, B: yes, C: "", D: }
    files:
      /etc/motd: {content: "hello\n", mode: 0600}
      /bin/x: {base64: "AAEC", mode: 755}
    exec: ["ip link", "date"]
    sysctls: {net.ipv4.ip_forward: 1, net.ipv4.conf.lo.rp_filter: 0}
    routing: {protocol: bgp, daemon: bird, timers: fast}
    asn: 64512
    loopbacks: [192.0.2.1, "2001:db8::1"]
    anycast: [192.0.2.9, "2001:db8::9"]
    router-id: 1.2.3.4
    position: {latitude: 47.6, longitude: -122.3}
    on: host1
    fastpath: off
    repair: never
  b: {cmd: echo hello, exec: date, loopback: 192.0.2.2, routing: static}
`},
	{name: "defaults", yaml: "name: x\ndefaults:\n  node: {image: /srv/root, fastpath: off, repair: never, env: {A: 1, B: 2}, exec: [a], sysctls: {net.a.b: 1}, files: {/a: {content: x}}}\n  link: {rate: 1gbit, mtu: 1400, cost: 5, delay: 1ms, jitter: 0.5ms, loss: 1%}\nnodes:\n  a: {env: {B: 3}, exec: [], files: {/a: {content: y}, /b: {content: ''}}, fastpath: auto, repair: always}\n  b: {}\nlinks:\n  - {endpoints: [a, b], rate: unlimited, delay: 0, jitter: 0}\n"},
	{name: "an MTU that was given, the default or not", yaml: two + "links:\n  - {endpoints: [a, b], mtu: 1500}\n  - endpoints: [{node: a, mtu: 1500}, b]\n  - endpoints: [{node: a, mtu: 1400}, {node: b, mtu: 1500}]\n"},
	{name: "network settings", yaml: "name: x\nrouting: {protocol: rip, timers: fast}\naddressing: {ipv4: 172.16.0.0/12, ipv6: 'fd12::/32'}\nnodes: {a: {}}\nlinks: []\n"},
	{name: "routing with every key", yaml: `name: x
routing: {protocol: bgp, igp: isis, daemon: frr, timers: {set: default, hello: 2s, dead: 8s, spf: [0, 500ms, 5s]}}
nodes:
  a: {asn: 64512, routing: {protocol: bgp, route-reflector: true, area: 7}}
  b: {asn: 64512, routing: {protocol: bgp, default-route: true, timers: fast}}
  c: {asn: 64513, routing: {protocol: bgp, igp: none, timers: {hello: 3s}}}
  d: {routing: {protocol: ospf, area: 0.0.0.2}}
links:
  - [a, b]
  - {endpoints: [b, c], routing: {protocol: bgp}}
  - {endpoints: [a, d], routing: none}
  - {endpoints: [b, d], routing: {passive: true, area: 3}}
`},
	{name: "hosts and addresses off", yaml: `name: x
routing: ospf
defaults:
  node: {exec-timeout: 90s}
  link: {addressing: unnumbered, routing: {passive: true}}
nodes:
  r1: {}
  r2: {addressing: none, loopback: 192.0.2.9}
  pc: {kind: host, cmd: [/bin/cat], restart: on-failure}
  pd: {kind: host, cmd: [/bin/cat], restart: no, exec-timeout: 2s}
links:
  - [r1, r2]
  - {type: lan, endpoints: [r1, pc, pd], routing: {}}
  - {endpoints: [r1, r2], addressing: none, routing: ospf}
  - {endpoints: [r1, r2], addressing: auto}
`},
	{name: "no addresses at all", yaml: "name: x\naddressing: none\nnodes: {a: {}, b: {files: {/etc/frr/frr.conf: {content: \"router ospf\\n\"}}}}\nlinks: [[a, b]]\n"},
	{name: "names as people write them", yaml: "name: x\nnodes:\n  New York: {}\n  São Paulo: {display: Sampa}\n  Denver:\n  austin: {display: Austin TX}\nlinks:\n  - [New York, Denver]\n  - [\"denver:eth7\", \"São Paulo:wan\"]\n  - [{node: Austin}, new-york]\n"},
	{name: "one family", yaml: "name: x\naddressing: {ipv6: 'fd12::/32'}\nnodes: {a: {}, b: {}}\nlinks: [[a, b]]\n"},
	{name: "anchors and merges", yaml: "name: x\nnodes:\n  a: &a {cpu: 1, env: {X: y}}\n  b: {<<: *a, cpu: 2}\n  c: *a\n"},
	{name: "names that YAML takes for other things", yaml: "name: yes\nnodes: {on: {}, y: {}, 1e3: {}}\nlinks: [[on, y], [y, 1e3]]\n"},
	{name: "comments and order", yaml: "# a network\nlinks: [[b, a]]\nnodes: # two\n  b:\n  a:\nname: x # its name\n"},
}

var badYAML = []yamlCase{
	{name: "empty", yaml: "", want: []string{"1: the file is empty; describe a network with name, nodes and links"}},
	{name: "only a comment", yaml: "# hello\n", want: []string{"1: the file is empty; describe a network with name, nodes and links"}},
	{name: "twice, and not said so", semantic: true, yaml: "name: x\nnodes:\n  a: {loopback: 192.0.2.1, anycast: 192.0.2.2}\n  b: {loopback: 192.0.2.1}\n  c: {loopback: 192.0.2.2}\n  h: {kind: host, anycast: 192.0.2.9}\nlinks:\n  - endpoints: [{node: a, addresses: 192.168.1.1/24}, h]\n    overlap: true\n  - endpoints: [{node: b, addresses: 192.168.1.1/24}, c]\n", want: []string{
		`3: anycast address 192.0.2.2 of node "a" is the loopback of node "c"; give it another, or write it as anycast of both`,
		`4: loopback address 192.0.2.1 is at nodes "a" and "b"; give each node its own, or write it as anycast of each node that has it`,
		`4: router ID 192.0.2.1 is at nodes "a" and "b"; give each node its own`,
		`6: node "h" is a host, which has no loopback addresses; leave it out, or say kind: router`,
		`10: address 192.168.1.1 is at a:eth1 and b:eth1; give each interface its own, or say overlap: true for both links`,
		`10: subnet 192.168.1.0/24 of link "b-c" overlaps 192.168.1.0/24 of link "a-h"; give each link its own subnet, or say overlap: true for both`,
	}},
	{name: "sysctls of interfaces", semantic: true, yaml: "name: x\ndefaults:\n  node:\n    sysctls:\n      net.ipv4.ip_forward: 1\n      net.ipv4.conf.eth1.rp_filter: 1\nnodes:\n  a:\n    sysctls:\n      net.ipv4.conf.all.rp_filter: 1\n      net.mpls.conf.eth2.input: 1\n  b: {}\nlinks: [[a, \"b:wan0\"]]\n", want: []string{
		`6: node "b": sysctl net.ipv4.conf.eth1.rp_filter is of the interface eth1, which the node does not have; name one that a link gives the node: wan0`,
		`11: node "a": sysctl net.mpls.conf.eth2.input is of the interface eth2, which the node does not have; name one that a link gives the node: eth1`,
	}},
	{name: "no free address in a subnet of the node's own configuration", semantic: true, yaml: "name: x\nnodes: {a: {files: {/etc/frr/frr.conf: {content: \"interface eth1\\n ip address 192.0.2.1/30\\n\"}}}, b: , c: }\nlinks:\n  - {type: lan, endpoints: [a, b,\n      c]}\n", want: []string{
		`5: no free address in 192.0.2.0/30 for node "c" on link "lan-a"; name an address for that end, or use a larger subnet`}},
	{name: "one end of a point-to-point link pulled", semantic: true, yaml: two + "links:\n  - endpoints: [{node: a, state: down}, b]\n", want: []string{"4: a:eth1 alone is down, which only ends of a LAN may be; say `state: down` of the link"}},
	{name: "a list", yaml: "[a]\n", want: []string{"1: the network must be a mapping, not a list; write it as `key: value` lines"}},
	{name: "unknown key", yaml: "name: x\nroutng: ospf\nnodes: {a: {}}\n", want: []string{`2: unknown key "routng" in the network; did you mean "routing"?`}},
	{name: "unknown key, nothing near", yaml: "name: x\ntopology: {}\nnodes: {a: {}}\n", want: []string{`2: unknown key "topology" in the network; the keys are name, routing, addressing, defaults, nodes, links`}},
	{name: "unknown keys everywhere", yaml: "name: x\nrouting: {protocl: ospf}\naddressing: {ipv5: x}\ndefaults:\n  node: {asn: 1}\n  link: {nam: x}\n  host: {}\nnodes:\n  a: {memroy: 1, files: {/a: {contents: x}}, position: {lat: 1}}\n  b: {}\nlinks:\n  - {endpoints: [a, b], dely: 1ms}\n  - {endpoints: [{node: a, iface: x}, b], rate: {upp: 1mbit}}\n", want: []string{
		`2: unknown key "protocl" in routing; did you mean "protocol"?`,
		`3: unknown key "ipv5" in addressing; did you mean "ipv4"?`,
		`5: unknown key "asn" in defaults.node; `,
		`6: unknown key "nam" in defaults.link; `,
		`7: unknown key "host" in defaults; the keys are node, link`,
		`9: unknown key "memroy" in node "a"; did you mean "memory"?`,
		`9: unknown key "contents" in node "a": files /a; did you mean "content"?`,
		`9: node "a": files /a has no content; say source (a file beside this one), content or base64`,
		`9: unknown key "lat" in node "a": position; `,
		`9: node "a": position needs both coordinates; write {latitude: 47.6, longitude: -122.3}`,
		`12: unknown key "dely" in link 1; did you mean "delay"?`,
		`13: unknown key "iface" in link 2: endpoint 1; `,
		`13: unknown key "upp" in link 2: rate; did you mean "up"?`,
	}},
	{name: "wrong types", yaml: "name: [x]\nrouting: [ospf]\nnodes:\n  a: hello\n  b: {cpu: many, memory: 12, pids: 1.5, env: [A], exec: {a: b}, files: x}\nlinks: {a: b}\n", want: []string{
		"1: name must be a single value, not a list; write a single value",
		"2: routing must be a mapping, not a list; ",
		`4: node "a" must be a mapping, not the single value "hello"; `,
		`5: node "b": cpu is "many"; write a number`,
		`5: node "b": memory: size "12" has no unit; write a size like 96MiB or 1GB`,
		`5: node "b": pids is "1.5"; write a whole number from 8 to 32768`,
		`5: node "b": env must be a mapping, not a list; `,
		`5: node "b": exec must be a list, not a mapping; `,
		`5: node "b": files must be a mapping, not the single value "x"; `,
		"6: links must be a list, not a mapping; write it as a list, like [a, b]",
	}},
	{name: "no name", yaml: "nodes: {a: {}}\n", want: []string{"1: the network has no name; "}},
	{name: "no nodes", yaml: "name: x\n", want: []string{"1: the network has no nodes; "}},
	{name: "bad network name", yaml: "name: My_Net\nnodes: {a: {}}\n", want: []string{`1: the network's name "My_Net" is not valid; use up to 32 of a-z, 0-9 and '-', not starting with '-'`}},
	{name: "bad node name", yaml: "name: x\nnodes:\n  a: {}\n  B_c: {}\n", want: []string{`4: "B_c" is not a valid node name; `}},
	{name: "names that mean the same", semantic: true, yaml: "name: x\nnodes:\n  denver: {}\n  Denver: {}\n  New York: {}\n  new york: {}\n", want: []string{
		`4: node "Denver" gets the name "denver", which another node has (line 3); write one of them differently`,
		`6: node "new york" gets the name "new-york", which another node has (line 5); write one of them differently`}},
	{name: "display names and restarts", semantic: true, yaml: "name: x\nnodes:\n  a: {display: ' x'}\n  b: {restart: always}\n  c: {exec-timeout: 2h}\n", want: []string{
		`3: node "a": " x" cannot be a display name; use up to 128 bytes of one line, without spaces at its ends`,
		`4: node "b" says when to restart its command and has none; `,
		`5: node "c": exec-timeout 2h0m0s is out of range; use 1s to 1h0m0s`}},
	{name: "words of routing and addressing", yaml: "name: x\nrouting: {protocol: bgp, igp: bgp, timers: {hello: 0s}}\naddressing: off\nnodes:\n  a: {kind: hots, routing: {area: x}, addressing: unnumbered, restart: never}\n  b: {routing: {timers: {spf: [1s, 2s]}, default-route: maybe}, exec-timeout: 0s}\nlinks:\n  - {endpoints: [a, b], addressing: off, routing: static}\n  - {endpoints: [a, b], routing: {passive: 1}}\n", want: []string{
		`2: routing: igp is "bgp"; use one of none, ospf, isis or rip`,
		`2: routing: timers: hello is 0; write a time like 2s, or leave the key out`,
		`3: addressing is "off"; use one of auto or none`,
		`5: node "a": kind is "hots"; did you mean "host"? (router or host)`,
		`5: node "a": routing: area: "x" is not an area; `,
		`5: node "a": addressing is "unnumbered"; use one of auto or none`,
		`5: node "a": restart is "never"; use one of always, on-failure or no`,
		`6: node "b": routing: timers: spf has 2 values; write [first, next, most], like [100ms, 1s, 5s]`,
		`6: node "b": routing: default-route is "maybe"; use one of true or false`,
		`6: node "b": exec-timeout is 0; `,
		`8: link 1: addressing is "off"; use one of auto, none or unnumbered`,
		`8: link 1: routing is "static"; use one of none, ospf, isis, bgp or rip`,
		`9: link 2: routing: passive is "1"; use one of true or false`}},
	{name: "node named twice", yaml: "name: x\nnodes:\n  a: {}\n  a: {}\n", semantic: true, want: []string{`4: key "a" is there twice in nodes (first in line 3); keep one of them`}},
	{name: "dangling endpoint", yaml: "name: x\nnodes: {seattle: {}, denver: {}}\nlinks:\n  - [seattle, denver]\n  - [seattle, denvr]\n", semantic: true, want: []string{`5: link "seattle-denvr" ends at node "denvr", which does not exist; write "denver", or add it under nodes`}},
	{name: "interface named twice", yaml: two + "links:\n  - [\"a:e0\", b]\n  - [\"a:e0\", b]\n", semantic: true, want: []string{`5: interface a:e0 is used twice, by links "a-b" and "a-b-2"; name another interface, or none`}},
	{name: "bad interface names", yaml: two + "links:\n  - [\"a:lo\", \"b:averyveryverylong\"]\n", want: []string{`4: interface name "lo" of node "a" is reserved; `, `4: interface name "averyveryverylong" of node "b" is longer than 15 bytes; `}},
	{name: "link named twice", yaml: two + "links:\n  - {name: l, endpoints: [a, b]}\n  - {name: l, endpoints: [a, b]}\n", semantic: true, want: []string{`5: link "l" is there twice (links 1 and 2); give every link a name of its own`}},
	{name: "link to itself", yaml: two + "links:\n  - [a, a]\n", semantic: true, want: []string{`4: node "a" is on link "a-a" twice; join different nodes, or say type: lan`}},
	{name: "three ends", yaml: "name: x\nnodes: {a: {}, b: {}, c: {}}\nlinks:\n  - [a, b, c]\n", want: []string{`4: link "a-b" has 3 ends, a point-to-point link has two; name two ends, or say type: lan`}},
	{name: "no ends", yaml: two + "links:\n  - {name: l}\n", want: []string{`4: link "l" has no endpoints; add endpoints: [a, b]`}},
	{name: "address twice", yaml: "name: x\nnodes: {a: {}, b: {}, c: {}}\nlinks:\n  - [{node: a, addresses: 192.0.2.1/24}, b]\n  - [{node: a, addresses: 192.0.2.1/25}, c]\n", semantic: true, want: []string{
		`5: address 192.0.2.1 is at a:eth1 and a:eth2; give each interface its own, or say overlap: true for both links`,
		`5: subnet 192.0.2.0/25 of link "a-c" overlaps 192.0.2.0/24 of link "a-b"; give each link its own subnet, or say overlap: true for both`}},
	{name: "loopback twice", yaml: "name: x\nnodes:\n  a: {loopback: 192.0.2.1}\n  b: {loopback: 192.0.2.1}\n", semantic: true, want: []string{
		`4: loopback address 192.0.2.1 is at nodes "a" and "b"; give each node its own, or write it as anycast of each node that has it`,
		`4: router ID 192.0.2.1 is at nodes "a" and "b"; give each node its own`}},
	{name: "rates", yaml: two + "links:\n  - {endpoints: [a, b], rate: 0}\n  - {endpoints: [a, b], rate: 0mbit}\n  - {endpoints: [a, b], rate: 100}\n  - {endpoints: [a, b], rate: 10 furlongs}\n  - {endpoints: [a, b], rate: -5mbit}\n  - {endpoints: [a, b], rate: fast}\n", want: []string{
		`4: link 1: rate: rate "0" has no unit; write a rate like 10kbit, 100mbit or 1.5gbit`,
		`5: link 2: rate: rate "0mbit" is outside 1kbit to 100tbit; leave the rate out for an unlimited link`,
		`6: link 3: rate: rate "100" has no unit; write a rate like 10kbit, 100mbit or 1.5gbit`,
		`7: link 4: rate: rate "10 furlongs" has the unknown unit "furlongs"; the units are bit, kbit, mbit, gbit, tbit`,
		`8: link 5: rate: rate "-5mbit" is negative; write a rate like 10kbit, 100mbit or 1.5gbit`,
		`9: link 6: rate: rate "fast" does not start with a number; write a rate like 10kbit, 100mbit or 1.5gbit`}},
	{name: "delays and losses", yaml: two + "links:\n  - {endpoints: [a, b], delay: 5}\n  - {endpoints: [a, b], delay: -5ms}\n  - {endpoints: [a, b], loss: 1}\n  - {endpoints: [a, b], loss: 101%}\n", want: []string{
		`4: link 1: delay: delay "5" has no unit; write a delay like 12ms or 300us`,
		`5: link 2: delay: delay "-5ms" is negative; write a delay like 12ms or 300us`,
		"6: link 3: loss: loss \"1\" without a % sign must be below 1; write 1% or 100%",
		"7: link 4: loss: loss \"101%\" is over 100%; write a loss like 0.1% or 0.001"}},
	{name: "out of range", semantic: true, yaml: two + "links:\n  - {endpoints: [a, b], delay: 2m}\n  - endpoints: [a, b]\n    delay: 1ms\n    jitter: 2ms\n", want: []string{
		`4: a:eth1: delay 2m0s is out of range; use 0 to 60s`,
		`4: b:eth1: delay 2m0s is out of range; use 0 to 60s`,
		`7: a:eth2: jitter 2ms is out of range; use no more than the delay`,
		`7: b:eth2: jitter 2ms is out of range; use no more than the delay`}},
	{name: "MTU", yaml: two + "links:\n  - {endpoints: [a, b], mtu: 67}\n  - {endpoints: [a, b], mtu: 70000}\n", want: []string{
		`4: link 1: mtu is "67"; write a whole number from 68 to 65535`,
		`5: link 2: mtu is "70000"; write a whole number from 68 to 65535`}},
	{name: "MTU too small for IPv6", semantic: true, yaml: two + "links:\n  - endpoints: [a, b]\n    mtu: 1000\n", want: []string{
		`5: a:eth1: MTU 1000 is out of range; use 1280 to 65535 (IPv6 needs 1280), or leave IPv6 out of addressing`,
		`5: b:eth1: MTU 1000 is out of range; use 1280 to 65535 (IPv6 needs 1280), or leave IPv6 out of addressing`}},
	{name: "MACs", semantic: true, yaml: two + "links:\n  - [{node: a, mac: '01:00:00:00:00:01'}, b]\n  - [{node: a, mac: '02:00:00:00:00:01'}, {node: b, mac: '02:00:00:00:00:01'}]\n", want: []string{
		`4: a:eth1: MAC address 01:00:00:00:00:01 is not a unicast address; use one like 02:00:00:00:00:01`,
		`5: MAC address 02:00:00:00:00:01 is twice on link "a-b-2"; give each end its own`}},
	{name: "MAC in a wrong form", yaml: two + "links:\n  - [{node: a, mac: hello}, b]\n", want: []string{`4: link 1: endpoint 1: mac is "hello"; write an address like 02:00:00:00:00:01, in quotes`}},
	{name: "words", yaml: "name: x\nrouting: opsf\nnodes:\n  a: {routing: {protocol: bgp, daemon: quagga, timers: quick}}\n  b: {}\nlinks:\n  - {endpoints: [a, b], type: bus}\n  - {endpoints: [a, b], state: sideways}\n  - {endpoints: [a, b], down: maybe}\n", want: []string{
		`2: routing is "opsf"; did you mean "ospf"? (none, static, ospf, isis, bgp or rip)`,
		`4: node "a": routing: daemon is "quagga"; use one of frr or bird`,
		`4: node "a": routing: timers is "quick"; use one of default or fast`,
		`7: link 1: type is "bus"; use one of p2p or lan`,
		`8: link 2: state is "sideways"; use one of up or down`,
		`9: link 3: down is "maybe"; use one of true or false`}},
	{name: "fast paths", yaml: "name: x\nnodes:\n  a: {fastpath: of}\n  b: {fastpath: on}\n", want: []string{
		`3: node "a": fastpath is "of"; did you mean "off"? (auto or off)`,
		`4: node "b": fastpath is "on"; use one of auto or off`}},
	{name: "repairs", yaml: "name: x\nnodes:\n  a: {repair: nevr}\n  b: {repair: on}\n", want: []string{
		`3: node "a": repair is "nevr"; did you mean "never"? (always or never)`,
		`4: node "b": repair is "on"; use one of always or never`}},
	{name: "IS-IS from BIRD", yaml: "name: x\nnodes:\n  a:\n    routing: {protocol: isis, daemon: bird}\n", want: []string{`4: node "a" asks for isis from bird, which does not speak it; use daemon frr for isis`}},
	{name: "a daemon for static", semantic: true, yaml: "name: x\nrouting: {protocol: static, daemon: frr}\nnodes: {a: {}}\n", want: []string{`2: the network asks for static routes and a daemon: `, `3: node "a" asks for static routes and a daemon: `}},
	{name: "limits", yaml: "name: x\nnodes:\n  a: {memory: 1MiB}\n  b: {memory: 5 parsecs}\n  c: {pids: 0}\n  d: {disk: 1.5B}\n", want: []string{
		`3: node "a": memory is "1MiB"; use 4MiB to 64TiB`,
		`4: node "b": memory: size "5 parsecs" has the unknown unit "parsecs"; `,
		`5: node "c": pids is "0"; write a whole number from 8 to 32768`,
		`6: node "d": disk: size "1.5B" is not a whole number of its smallest unit; `}},
	{name: "cpu", yaml: "name: x\nnodes:\n  a: {cpu: -1}\n", want: []string{`3: node "a": cpu -1 is out of range; `}},
	{name: "position", yaml: "name: x\nnodes:\n  a: {position: {latitude: 91, longitude: 0}}\n", want: []string{`3: node "a": position 91, 0 is not on the globe; `}},
	{name: "sysctls and variables", yaml: "name: x\nnodes:\n  a: {sysctls: {kernel.core_pattern: x}}\n  b: {env: {1A: x}}\n  c: {sysctls: {net.ipv4.ip_forward: }}\n", want: []string{
		`3: node "a": sysctl "kernel.core_pattern" is not a network setting; `,
		`4: node "b": "1A" is not a valid environment variable name; `,
		`5: node "c": sysctls net.ipv4.ip_forward has no value; `}},
	{name: "mistakes of writing and of meaning in one run", semantic: true, yaml: "name: My_Net\nnodes:\n  a: {memroy: 1GiB}\n  b: {cpu: 5000}\n  c: {}\nlinks:\n  - [a, b]\n  - {endpoints: [b, x], dely: 1ms}\n  - [b, y]\n  - [c, c]\n", want: []string{
		`1: the network's name "My_Net" is not valid; `,
		`3: unknown key "memroy" in node "a"; did you mean "memory"?`,
		`4: node "b": cpu 5000 is out of range; `,
		`8: unknown key "dely" in link 2; did you mean "delay"?`,
		`9: link "b-y" ends at node "y", which does not exist; `,
		`10: node "c" is on link "c-c" twice; join different nodes, or say type: lan`}},
	{name: "nothing follows from nodes that cannot be read", yaml: "name: x\nnodez: {a: {}}\nlinks:\n  - [a, b]\n  - {endpoints: [a, b], rate: 5}\n", want: []string{
		`2: unknown key "nodez" in the network; did you mean "nodes"?`,
		`5: link 2: rate: rate "5" has no unit; `}},
	{name: "sysctls outside net", yaml: "name: x\nnodes:\n  a: {sysctls: {kernel.core_pattern: x}}\n", want: []string{`3: node "a": sysctl "kernel.core_pattern" is not a network setting; `}},
	{name: "variable names", yaml: "name: x\nnodes:\n  b: {env: {1A: x}}\n", want: []string{`3: node "b": "1A" is not a valid environment variable name; `}},
	{name: "files", yaml: "name: x\nnodes:\n  a: {files: {etc/motd: {content: x}}}\n", want: []string{`3: node "a": file path "etc/motd" is not valid; use a clean absolute path, like /etc/frr/frr.conf`}},
	{name: "a file in a file", semantic: true, yaml: "name: x\nnodes:\n  a: {files: {/a: {content: x}, /a/b: {content: y}}}\n", want: []string{`3: node "a": file /a/b lies in /a, which is a file too; choose one of the two`}},
	{name: "file modes and contents", yaml: "name: x\nnodes:\n  a: {files: {/a: {content: x, mode: rw}, /b: {content: x, base64: eA==}, /d: {mode: 0644}}}\n", want: []string{
		`3: node "a": files /a: mode is "rw"; write permission bits in octal, like 0644`,
		`3: node "a": files /b has both content and base64; keep one of them`,
		`3: node "a": files /d has no content; `}},
	{name: "bad base64", semantic: true, yaml: "name: x\nnodes:\n  a: {files: {/c: {base64: '***'}}}\n", want: []string{`3: node "a": files /c: base64 cannot be decoded; `}},
	{name: "a file reference in a pure read", semantic: true, yaml: "name: x\nnodes:\n  a: {files: {/a: motd}}\n", want: []string{`3: node "a": files /a: file "motd": cannot be read: references to files are not followed here; `}},
	{name: "addressing", yaml: "name: x\naddressing: {ipv4: 'fd00::/48', ipv6: hello}\nnodes: {a: {}}\n", want: []string{
		`2: addressing: ipv4 is "fd00::/48"; write a prefix like 10.0.0.0/8 for ipv4 or fd00::/48 for ipv6`,
		`2: addressing: ipv6 is "hello"; `}},
	{name: "a pool too small", semantic: true, yaml: "name: x\naddressing: {ipv4: 10.0.0.0/30}\nnodes:\n  a: {}\n  b: {}\nlinks: [[a, b]]\n", want: []string{`5: no room for the loopback of node "b" in the pool 10.0.0.0/30; give addressing a larger pool, or name the address`}},
	{name: "interface addresses", semantic: true, yaml: two + "links:\n  - [{node: a, addresses: 192.0.2.0/24}, {node: b, addresses: 192.0.2.255/24}]\n  - [{node: a, addresses: 224.0.0.1/24}, {node: b, addresses: [192.0.3.1/24, 192.0.3.1/25]}]\n", want: []string{
		`4: a:eth1: 192.0.2.0/24 is the network or broadcast address of its subnet; `,
		`4: b:eth1: 192.0.2.255/24 is the network or broadcast address of its subnet; `,
		`5: a:eth2: 224.0.0.1/24 cannot be an interface's address; `,
		`5: b:eth2 has the address 192.0.3.1 twice; name it once`}},
	{name: "addresses without a length", yaml: two + "links:\n  - [{node: a, addresses: 192.0.2.1}, b]\n", want: []string{`4: link 1: endpoint 1: addresses has "192.0.2.1"; write an address with its prefix length, like 192.0.2.1/24`}},
	{name: "AS numbers", yaml: "name: x\nnodes:\n  a: {asn: 0}\n  b: {asn: 4294967295}\n", want: []string{
		`3: node "a": asn is "0"; write a whole number from 1 to 4294967294`,
		`4: node "b": asn is "4294967295"; `}},
	{name: "down said twice", yaml: two + "links:\n  - {endpoints: [a, b], state: up, down: true}\n", want: []string{`4: link 1 says both state and down; keep one of them`}},
	{name: "receiving on a point-to-point link", semantic: true, yaml: two + "links:\n  - [{node: a, rate: {up: 1mbit, down: 2mbit}}, b]\n", want: []string{`4: an end of a point-to-point link shapes only what it sends; `}},
	{name: "tabs", yaml: "name: x\nnodes:\n\ta: {}\n", semantic: true, want: []string{"3: not valid YAML: found character that cannot start any token; indent with spaces, not tabs, and quote values that start with a special character"}},
	{name: "broken brackets", yaml: "name: x\nnodes: {a: {}\n", semantic: true, want: []string{"2: not valid YAML: did not find expected ',' or '}'; check the indentation, the quotes and the brackets from that line on"}},
	{name: "two documents", yaml: "name: x\nnodes: {a: {}}\n---\nname: y\n", semantic: true, want: []string{"3: the file holds a second document; describe one network in each file"}},
	{name: "a tag", yaml: "name: !!binary eA==\nnodes: {a: {}}\n", semantic: true, want: []string{"1: name has the tag !!binary, which is not understood; leave the tag out"}},
	{name: "no value", yaml: "name:\nnodes: {a: {image: }}\n", want: []string{"1: name has no value; write a value, or leave the key out", `2: node "a": image has no value; `}},
	{name: "no end name", yaml: two + "links:\n  - [\"a:\", b]\n  - [{interface: x}, b]\n", want: []string{`4: link 1: endpoint 1 is "a:"; write node or node:interface`, `5: link 2: endpoint 1 has no node; add node: NAME`}},
}
