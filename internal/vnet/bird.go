package vnet

// BIRD is https://bird.network.cz, version 2.
const BIRD Daemon = "bird"

// BIRDConfig is BIRD's configuration, as Debian and Ubuntu build it.
const BIRDConfig = "/etc/bird/bird.conf"

var birdKind = DaemonKind{
	Name: BIRD, Title: "BIRD", Package: "bird2",
	Dirs:       []string{"/usr/sbin"},
	Programs:   []string{"bird"},
	Tried:      []string{"2.0.12", "2.17"},
	Speaks:     map[Protocol][]string{OSPF: nil, BGP: nil, RIP: nil},
	configures: func(path string) bool { return path == BIRDConfig },
}
