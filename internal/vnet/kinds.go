package vnet

// Kind says what a node is in its network.
type Kind string

// Kinds of nodes.
const (
	Router Kind = "router"
	Host   Kind = "host"
)

// KindTraits is all that a kind of nodes means.
type KindTraits struct {
	Name Kind
	// Forwards: it passes others' packets on, and hosts may take it for their gateway.
	Forwards bool
	// Routes: it may run routing protocols, and has the network's unless it names
	// its own. Else it has a default route to the first router on its links.
	Routes bool
	// Loopback: it has a loopback address, drawn from the pool, and its name means
	// that. Else it is reached, and named, at its interfaces' addresses.
	Loopback bool
}

// Kinds lists the kinds of nodes; the first is what a node is that does not say.
var Kinds = []KindTraits{
	{Name: Router, Forwards: true, Routes: true, Loopback: true},
	{Name: Host},
}

// Traits gives what a kind means; [Router]'s where there is none of that name.
func (k Kind) Traits() KindTraits {
	for _, t := range Kinds {
		if t.Name == k {
			return t
		}
	}
	return Kinds[0]
}

func (k Kind) known() bool { return k.Traits().Name == k }

// KindNames lists the kinds as descriptions name them.
func KindNames() []string {
	names := make([]string, len(Kinds))
	for i, t := range Kinds {
		names[i] = string(t.Name)
	}
	return names
}
