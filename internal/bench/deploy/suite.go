package deploy

import "trellis/internal/vnet"

// fastOSPF is what the standard suite's routers speak.
var fastOSPF = vnet.Routing{Protocol: vnet.OSPF, Daemon: vnet.FRR, Timers: vnet.TimersFast}

// Standard gives the cases of the standard suite: the Abilene backbone with fast
// OSPF; 300 hosts on six FRR routers in a mesh; and, for the memory of a node,
// a ring of 50 plain nodes and one of 20 FRR routers. Abilene is nil where
// [AbilenePath] does not exist. Large holds networks of the user's, which are
// tried with static routing.
func Standard(abilene *Case, large []Case) ([]Case, []Skipped, error) {
	var cases []Case
	var skipped []Skipped
	if abilene != nil {
		v, err := Reroute(abilene.VNet, fastOSPF)
		if err != nil {
			return nil, nil, err
		}
		cases = append(cases, Case{Name: abilene.Name, Source: abilene.Source, VNet: v})
	} else {
		skipped = append(skipped, Skipped{"abilene", AbilenePath + " is not there: run the suite in a clone of the repository"})
	}
	for _, g := range []struct {
		source string
		make   func() (*vnet.VNet, error)
	}{
		{"300 hosts, 6 routers in a mesh", func() (*vnet.VNet, error) { return Hosts(300, 6, Mesh, fastOSPF) }},
		{"plain nodes in a ring", func() (*vnet.VNet, error) { return Ring(50, vnet.Routing{Protocol: vnet.None}) }},
		{"FRR routers in a ring", func() (*vnet.VNet, error) { return Ring(20, fastOSPF) }},
	} {
		v, err := g.make()
		if err != nil {
			return nil, nil, err
		}
		cases = append(cases, Case{Name: v.Name, Source: g.source, VNet: v})
	}
	for _, c := range large {
		v, err := Reroute(c.VNet, vnet.Routing{Protocol: vnet.Static})
		if err != nil {
			return nil, nil, err
		}
		cases = append(cases, Case{Name: c.Name, Source: c.Source, VNet: v})
	}
	if len(large) == 0 {
		skipped = append(skipped, Skipped{"a large network with static routes", "no file was named, such as Kdl.graphml of the Internet Topology Zoo"})
	}
	return cases, skipped, nil
}

// AbilenePath is where the suite finds Abilene, from the root of the repository.
const AbilenePath = "examples/abilene.yaml"
