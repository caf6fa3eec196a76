package routing

import (
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"time"

	"trellis/internal/vnet"
)

// Load says how many of a network's routers share a core, for the timers that
// they are given: each hello costs a wake-up of a daemon at both ends, and each
// change of the topology a shortest-path calculation at every router. The zero
// value means that there is room for the fastest ones.
type Load struct {
	Routers int // nodes of the network that run a routing daemon
	// Busiest is how many of them run on the machine that has the fewest cores for
	// each; Cores is what that machine has.
	Busiest int
	Cores   float64
}

// NewLoad gives the load of a completed VNet whose nodes are placed. Machines
// whose cores are not known (0) count for nothing.
func NewLoad(v *vnet.VNet, placement map[string]string, cores map[string]float64) Load {
	var l Load
	on := map[string]int{}
	for i := range v.Nodes {
		if v.Nodes[i].Routing.Daemon != "" {
			l.Routers++
			on[placement[v.Nodes[i].Name]]++
		}
	}
	for host, n := range on {
		have := cores[host]
		switch {
		case have <= 0:
		case l.Cores == 0, float64(n)*l.Cores > float64(l.Busiest)*have,
			// Of two that are pressed alike the larger: maps have no order.
			float64(n)*l.Cores == float64(l.Busiest)*have && n > l.Busiest:
			l.Busiest, l.Cores = n, have
		}
	}
	return l
}

// perCore gives the routers that share a core.
func (l Load) perCore() float64 {
	if l.Cores <= 0 {
		return 0
	}
	return float64(l.Busiest) / l.Cores
}

// How load becomes timers. All steps are powers of two, so that a network that
// grows by a node keeps its configuration almost always.
const (
	// Routers on a core that may send a hello each second: 32 of them, with 2.4
	// links each and both families, take a tenth of a core for hellos.
	hellosPerCore = 32
	maxHello      = 16 // s
	// What one router's calculation costs for each router of the network, in ms of
	// a core, installing the routes that changed included, times four: calculations
	// are to leave three quarters of the core to everything else.
	spfCost = 0.2
	minSPF  = 500    // ms between calculations at least
	maxSPF  = 60_000 // ms
)

// hello gives the hello interval, in seconds, that the load allows.
func (l Load) hello() int {
	return min(powerOfTwo(l.perCore()/hellosPerCore), maxHello)
}

// spf gives the longest wait between shortest-path calculations, in ms.
func (l Load) spf() int {
	return min(max(powerOfTwo(l.perCore()*float64(l.Routers)*spfCost), minSPF), maxSPF)
}

// powerOfTwo gives the least power of two that is not less than x, 1 at least.
func powerOfTwo(x float64) int {
	if x <= 1 {
		return 1
	}
	return 1 << bits.Len(uint(math.Ceil(x))-1)
}

// timers are the timers of one protocol at one router, or on one link. Both ends
// of a link must agree on hello and dead.
type timers struct {
	hello, dead, retransmit int    // s
	spf                     [3]int // ms: the first calculation after a change, the next, and at most
	// lsaDelay is the least time between two versions of a router's own LSA, in ms.
	lsaDelay int
	// fast says that the values of the struct are not the protocol's defaults.
	fast bool
}

// Default timers of OSPF (RFC 2328, appendix C), IS-IS and BGP as FRR has them,
// and RIP (RFC 2453).
var defaultTimers = map[vnet.Protocol]timers{
	vnet.OSPF: {hello: 10, dead: 40, retransmit: 5},
	vnet.ISIS: {hello: 3, dead: 30},
	vnet.BGP:  {hello: 60, dead: 180},
	vnet.RIP:  {hello: 30, dead: 180},
}

// timersOf gives the timers that a router asks for.
func timersOf(r vnet.Routing, p vnet.Protocol, l Load) timers {
	t := defaultTimers[p]
	if r.Timers == vnet.TimersFast {
		t = fastTimers(p, l)
	}
	i := r.Intervals
	if i.Hello > 0 {
		t.hello, t.dead = int(i.Hello/time.Second), 4*int(i.Hello/time.Second)
	}
	if i.Dead > 0 {
		t.dead = int(i.Dead / time.Second)
	}
	if i.SPF[2] > 0 {
		for k, d := range i.SPF {
			t.spf[k] = int(d / time.Millisecond)
		}
		t.lsaDelay = min(t.spf[0], maxLSADelay)
	}
	t.fast = t != defaultTimers[p]
	return t
}

// maxLSADelay is RFC 2328's MinLSInterval, and the most that FRR takes.
const maxLSADelay = 5000 // ms

// fastTimers gives the fastest timers that the load allows.
func fastTimers(p vnet.Protocol, l Load) timers {
	h, most := l.hello(), l.spf()
	t := timers{hello: h, dead: 4 * h, retransmit: max(2, h)} // BIRD's least is 2 s
	if h > 1 {
		// A busy machine runs a daemon late; a pulled cable is seen at once anyway.
		t.dead = 8 * h
	}
	switch p {
	case vnet.BGP:
		t.hello, t.dead = min(3*h, 60), min(9*h, 180)
	case vnet.RIP:
		t.hello, t.dead = min(5*h, 30), min(15*h, 180) // 5 s is FRR's least
	}
	// While adjacencies come up one after the other each calculation is soon
	// outdated, so on a busy machine even the first one waits.
	t.spf = [3]int{0, 50, most}
	if most > minSPF {
		t.spf = [3]int{most / 4, most / 2, most}
		t.lsaDelay = min(most/10, maxLSADelay)
	}
	return t
}

// lsaArrival gives the least time between two versions of an LSA of others, in
// ms: less than what they keep to, for one that comes sooner is dropped.
func (t timers) lsaArrival() int { return min(t.lsaDelay/2, 1000) }

// slower gives what two ends that ask for different timers both keep to. Ends
// that disagree never become neighbours, and nobody is made to send hellos
// faster than asked for.
func (t timers) slower(u timers) timers {
	t.hello, t.dead, t.retransmit = max(t.hello, u.hello), max(t.dead, u.dead), max(t.retransmit, u.retransmit)
	t.fast = t.fast || u.fast
	return t
}

// DescribeTimers says in one line which timers the routers of a completed VNet
// run on and why, where the load makes them slower than fast; else it is empty.
func DescribeTimers(v *vnet.VNet, l Load) string {
	t := fastTimers(vnet.OSPF, l)
	if t == fastTimers(vnet.OSPF, Load{}) {
		return ""
	}
	fast, dead := false, t.dead
	for i := range v.Nodes {
		r := v.Nodes[i].Routing
		if r.Protocol.NeedsDaemon() && r.Timers == vnet.TimersFast && r.Intervals.IsZero() {
			fast = true
		}
	}
	if !fast {
		return ""
	}
	out := fmt.Sprintf("%d routers on %s cores: hello %d s, dead %d s", l.Busiest, strconv.FormatFloat(l.Cores, 'g', 3, 64), t.hello, dead)
	if t.spf[2] > minSPF {
		out += fmt.Sprintf(", routes calculated %s after a change, then every %s at most", seconds(t.spf[0]), seconds(t.spf[2]))
	}
	return out
}

// seconds writes milliseconds for people.
func seconds(ms int) string {
	return strconv.FormatFloat(float64(ms)/1000, 'g', 2, 64) + " s"
}
