package plan

// Footprint is what a node takes of its substrate node.
type Footprint struct {
	Memory    int64 // bytes of RAM, kernel objects included
	Processes int
}

// Measured on Linux 6.18: 754 nodes of the network Kdl, with what the kernel holds
// for their namespaces and links. Routers with OSPF for both families were measured
// with 1,500 routes each; what their daemons take, package routing says.
const (
	bareNode    = 1300 << 10 // init, namespaces, a few links
	userProcess = 4 << 20    // not measured: a user's own program
)

// Footprint estimates what the node takes. What it may take at most is its Limits'.
func (n *Node) Footprint() Footprint {
	f := Footprint{Memory: bareNode, Processes: 1}
	each := n.Daemons.ProcessMemory()
	if each == 0 {
		each = userProcess
	}
	for _, s := range n.Daemons.Services {
		if !s.Loads && !s.Optional { // which end, or are missing on most systems
			f.Processes++
			f.Memory += each
		}
	}
	if len(n.Cmd) > 0 || n.Image != "" && n.Image != "host" {
		f.Processes++
		f.Memory += userProcess
	}
	return f
}

// Footprint adds up that of the plan's nodes.
func (p *Plan) Footprint() Footprint {
	var sum Footprint
	for i := range p.Nodes {
		f := p.Nodes[i].Footprint()
		sum.Memory += f.Memory
		sum.Processes += f.Processes
	}
	return sum
}
