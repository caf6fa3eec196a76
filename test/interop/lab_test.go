package interop

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"trellis/internal/bench"
	"trellis/internal/substrate/dataplane"
	"trellis/internal/substrate/nstest"
	"trellis/internal/vnet"
	"trellis/test/testenv"
)

// underlay is what lies between the two sides.
type underlay struct {
	ipv6 bool
	mtu  int               // bytes
	xdp  dataplane.XDPMode // of Trellis's uplink
}

// linkMTU is the most that a link over the underlay carries, bytes of the inner
// IP packet.
func (u underlay) linkMTU() int {
	if u.ipv6 {
		return u.mtu - 62
	}
	return u.mtu - 42
}

// host is a root context with one interface in the underlay, up0.
type host struct {
	*nstest.Node
	mac          vnet.MAC
	addr4, addr6 netip.Addr
}

// addr is the host's address of the underlay's family.
func (h *host) addr(u underlay) netip.Addr {
	if u.ipv6 {
		return h.addr6
	}
	return h.addr4
}

// prefixes are the host's addresses as interfaces take them.
func (h *host) prefixes() [2]string {
	return [2]string{h.addr4.String() + "/24", h.addr6.String() + "/64"}
}

// address gives an interface the host's addresses and sets it up.
func (h *host) address(t testing.TB, device string) {
	t.Helper()
	p := h.prefixes()
	h.Must(t, fmt.Sprintf("ip link set %[1]s up; ip addr add %[2]s dev %[1]s; ip addr add %[3]s dev %[1]s nodad", device, p[0], p[1]))
}

// start runs a program in the root context for as long as the test; what it
// says goes to the log of a test that fails.
func (h *host) start(t testing.TB, env []string, program ...string) {
	t.Helper()
	cmd := exec.Command("nsenter", append([]string{"-t", fmt.Sprint(h.Pid), "-n", "--"}, program...)...)
	cmd.Env = append(os.Environ(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(t, cmd.Start())
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
}

// lab is two sides with a wire between.
type lab struct {
	underlay
	own, far *host
	wire     *wire
	here     *trellis
	there    side
	keys     uint32
}

// newLab makes the two root contexts, the wire, and Trellis's side.
func newLab(t testing.TB, u underlay) *lab {
	t.Helper()
	testenv.NeedRoot(t, "makes network namespaces")
	l := &lab{underlay: u}
	l.own = newHost(t, 1)
	l.far = newHost(t, 2)
	l.wire = newWire(t, u.mtu, l.own, l.far)
	// A network card fills in the checksums that the kernel leaves to it; a veth
	// does not. (Trellis sees to its own uplink.)
	must(t, l.far.Do(func() error { return bench.SetChecksumOffload("up0", false) }))
	l.here = newTrellis(t, l.own, l.far, u)
	return l
}

func newHost(t testing.TB, number byte) *host {
	t.Helper()
	return &host{
		Node: nstest.NewNode(t), mac: vnet.MAC{2, 0, 0, 0, 0xee, number},
		addr4: netip.AddrFrom4([4]byte{192, 0, 2, number}),
		addr6: netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 15: number}),
	}
}

// pair makes a link between a node of Trellis's side and one of the peer's, each
// with an interface eth1.
func (l *lab) pair(t testing.TB) (near, far *nstest.Node) {
	t.Helper()
	near, far = newNode(t), newNode(t)
	l.join(t, near, "eth1", far, "eth1")
	near.Must(t, "ip addr add 10.0.0.1/24 dev eth1; ip addr add fd00::1/64 dev eth1 nodad")
	far.Must(t, "ip addr add 10.0.0.2/24 dev eth1; ip addr add fd00::2/64 dev eth1 nodad")
	reachable(t, far, "10.0.0.1", "fd00::1")
	return near, far
}

// join makes one link between interfaces of two nodes.
func (l *lab) join(t testing.TB, near *nstest.Node, nearName string, far *nstest.Node, farName string) {
	t.Helper()
	l.keys++
	key := 0xfeed0000 + l.keys
	l.here.link(t, near, nearName, key, l.linkMTU())
	l.there.link(t, far, farName, key, l.linkMTU())
}

// newNode makes a virtual node, or the peer's counterpart, with the defaults of
// Trellis.
func newNode(t testing.TB) *nstest.Node {
	t.Helper()
	n := nstest.NewNode(t)
	must(t, n.Defaults(nil))
	return n
}

// reachable waits until addresses answer: a peer may have to ask for its
// neighbours first.
func reachable(t testing.TB, n *nstest.Node, addresses ...string) {
	t.Helper()
	for _, a := range addresses {
		deadline := time.Now().Add(20 * time.Second)
		for {
			out, err := n.Exec(t, "ping -c 1 -W 1 "+a)
			if err == nil {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s does not answer: %s", a, out)
			}
		}
	}
}

// mac gives the address of a node's interface.
func mac(t testing.TB, n *nstest.Node, name string) (m vnet.MAC) {
	t.Helper()
	must(t, n.Do(func() error {
		i, err := net.InterfaceByName(name)
		if err == nil {
			copy(m[:], i.HardwareAddr)
		}
		return err
	}))
	return m
}

// index gives the interface index of a node's device.
func index(t testing.TB, n *nstest.Node, name string) (index int) {
	t.Helper()
	must(t, n.Do(func() error {
		i, err := net.InterfaceByName(name)
		if err == nil {
			index = i.Index
		}
		return err
	}))
	return index
}

func text(m vnet.MAC) string { return net.HardwareAddr(m[:]).String() }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
