package paper

// The papers, and what they measured. The figures are theirs, on machines of
// their time: ratios and shapes compare, rates do not. Where a paper has a figure
// as a drawing only, what its text says of it is here.

// source is a paper.
type source struct {
	Short, Title, Set string
}

var (
	trellis2008 = source{"Trellis (2008)", "Bhatia, Motiwala, Mühlbauer, Mundada, Valancius, Bavier, Feamster, Peterson, Rexford: Trellis: a platform for building flexible, fast virtual networks on commodity hardware. ROADS workshop at CoNEXT 2008",
		"Emulab PowerEdge 2850, 3.0 GHz Xeon, 1 Gbit/s Ethernet, Linux 2.6.20, pktgen, 64-byte packets, peak rate"}
	prototype = source{"VNet prototype (4WARD)", "Papadimitriou, Maennel, Greenhalgh, Feldmann, Mathy: Implementing network virtualization for a future Internet",
		"PowerEdge 2950, Xen 3.2, kernel-mode Click"}
	ucl2007 = source{"UCL, Lancaster (2007)", "Greenhalgh, Handley, Schooley, Egi, Hoerdt, Mathy: using Xen for router virtualisation",
		"Sun X4100 (2.2 GHz Opteron) and Dell 1950 (2.66 GHz), Linux 2.6.16, Xen 3.0.4, 64-byte packets, 100 to 1000 kpps for 10 s"}
	europa = source{"EUROPA (UMass)", "Liao, Yin, Gao: EUROPA, user-mode virtual routers",
		"2.66 GHz Core 2 Duo, OpenVZ"}
	kth = source{"KTH", "Rathore: Open virtual routers",
		"OpenVZ (Linux 2.6.27) with bridge and veth, network namespaces (2.6.34) with macvlan"}
)

// set-up of Trellis (2008), figures 3 and 4, and what is the like today.
type setup struct {
	Was    string  // the paper's words
	Of     float64 // of native
	Kpps   string  // as it was
	Config string  // today's equivalent
}

var setups = []setup{
	{"native kernel", 1, "≈ 790", "native"},
	{"EGRE tunnels ended inside the container (3c)", 0.73, "580", "tunnel-inside"},
	{"shortbridge to EGRE tunnels in the root context (3d)", 0.67, "525", "egre-stack"},
	{"bridge to plain Ethernet", 0.38, "≈ 300", "veth-bridge"},
	{"bridge to EGRE tunnels", 0.32, "≈ 250", "vxlan-bridge"},
	{"user-space Click, one Socket element", 0.10, "≈ 80", "user-packet"},
}

// shortbridgeBySize is Trellis (2008), figure 5: bytes, and the rate of native's.
// From 512 bytes on both fill the link of 1 Gbit/s.
var shortbridgeBySize = [][2]float64{{64, 0.67}, {512, 1}, {1518, 1}}

// These are KTH's: rates of an IP forwarder without virtualization and of a
// virtual router with bridge and veth, kpps.
const kthNative, kthBridge = 720.0, 334.0

// kthShare is the processor time of devices at an offered load of 800 kpps, %.
var kthShare = map[string]string{"veth-bridge": "bridge 18, veth 2.3", "macvlan": "macvlan 5"}

// Seconds to instantiate one VNet of the prototype: average (min to max).
const (
	onDemand     = "109.5 s (103.4 to 119.3)"
	preAllocated = "16.8 s (15.7 to 17.6)"
	onDemandMean = 109.47
)
