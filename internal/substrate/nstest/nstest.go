// Package nstest gives tests a root context and nodes of their own: network
// namespaces that vanish with the test, however it ends.
package nstest

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"trellis/internal/substrate/netns"
	"trellis/internal/substrate/port"
	"trellis/internal/vnet"
	"trellis/test/testenv"
)

// Root puts the test's goroutine in a new network namespace, its root context,
// for the rest of the test. The test is skipped without root.
func Root(t testing.TB) {
	t.Helper()
	testenv.NeedRoot(t, "makes network namespaces")
	// Never unlocked: the thread ends with the test, and the namespace with it.
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal("make a root context:", err)
	}
}

// Node is a virtual node: a process in a network namespace of its own.
type Node struct {
	*netns.NS
	Pid int
}

// NewNode makes a node that lives as long as the test.
func NewNode(t testing.TB) *Node {
	t.Helper()
	return newNode(t, &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET})
}

// NewTenant makes a node whose root is nobody outside: it owns its user and
// network namespaces, as a container's does.
func NewTenant(t testing.TB) *Node {
	t.Helper()
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 100000, Size: 65536}}
	return newNode(t, &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWNET | syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: ids, GidMappings: ids,
		Credential: &syscall.Credential{Uid: 0, Gid: 0},
	})
}

func newNode(t testing.TB, attr *syscall.SysProcAttr) *Node {
	t.Helper()
	attr.Pdeathsig = syscall.SIGKILL
	cmd := exec.Command("sleep", "infinity")
	cmd.SysProcAttr = attr
	if err := cmd.Start(); err != nil {
		t.Fatal("start a node:", err)
	}
	ns, err := netns.OfPid(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ns.Close()
		cmd.Process.Kill()
		cmd.Wait()
	})
	return &Node{NS: ns, Pid: cmd.Process.Pid}
}

// Exec runs a shell command as the node's root and gives its output.
func (n *Node) Exec(t testing.TB, command string) (string, error) {
	t.Helper()
	cmd := exec.Command("nsenter", "-t", fmt.Sprint(n.Pid), "-U", "-n", "-m", "--", "sh", "-c", command)
	if same, err := sameUser(n.Pid); err != nil {
		t.Fatal(err)
	} else if same {
		cmd = exec.Command("nsenter", "-t", fmt.Sprint(n.Pid), "-n", "--", "sh", "-c", command)
	}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func sameUser(pid int) (bool, error) {
	own, err := os.Readlink("/proc/self/ns/user")
	if err != nil {
		return false, err
	}
	other, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/user", pid))
	return own == other, err
}

// Must runs a command in the node that has to succeed, and waits until links that it
// sets up can send.
func (n *Node) Must(t testing.TB, command string) string {
	t.Helper()
	out, err := n.Exec(t, command)
	if err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
	if testenv.SetsUp(command) {
		n.Settle(t)
	}
	return out
}

// Settle waits until the node's links that have a carrier can send.
func (n *Node) Settle(t testing.TB) {
	t.Helper()
	testenv.Settle(t, func() (string, error) { return n.Exec(t, showLinks) })
}

const showLinks = "ip -o link show"

// Sh runs a command in the root context that has to succeed, and waits until links
// that it sets up can send.
func Sh(t testing.TB, command string) string {
	t.Helper()
	out, err := exec.Command("sh", "-c", command).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
	if testenv.SetsUp(command) {
		Settle(t)
	}
	return string(out)
}

// Settle waits until the links of the root context that have a carrier can send.
func Settle(t testing.TB) {
	t.Helper()
	testenv.Settle(t, func() (string, error) {
		out, err := exec.Command("sh", "-c", showLinks).CombinedOutput()
		return string(out), err
	})
}

var devices atomic.Uint32

// Spec describes a port to node's interface name, with names and addresses that
// no other of the test has.
func Spec(node *Node, name string) port.Spec {
	k := devices.Add(1)
	return port.Spec{
		Device: fmt.Sprintf("tr%d", k), Alias: fmt.Sprintf("trellis:test:net/n%d:%s", k, name), Group: 0x7e000001,
		Name: name, MAC: vnet.MAC{2, 0, 0, 0, byte(k >> 8), byte(k)}, MTU: 1500, Node: node.FD(),
	}
}

// Configure sets up a node's interface with addresses, and waits until it can send if
// it has a carrier.
func (n *Node) Configure(t testing.TB, name string, addrs ...string) {
	t.Helper()
	i := netns.Interface{Name: name, Up: true}
	for _, a := range addrs {
		i.Addrs = append(i.Addrs, netip.MustParsePrefix(a))
	}
	if _, err := n.NS.Configure(netns.Interior{Interfaces: []netns.Interface{i}}); err != nil {
		t.Fatal(err)
	}
	n.Settle(t)
	// An IPv6 address is the node's own, to the kernel, only when a work queue has got
	// to it (addrconf_dad_work, net/ipv6/addrconf.c), duplicates looked for or not.
	for _, a := range i.Addrs {
		for began := time.Now(); a.Addr().Is6(); time.Sleep(time.Millisecond) {
			out, err := n.Exec(t, fmt.Sprintf("ip -6 route show table local %s", a.Addr()))
			if err != nil || time.Since(began) > 10*time.Second {
				t.Fatalf("%s does not become local: %v %s", a, err, out)
			}
			if out != "" {
				break
			}
		}
	}
}

// Index gives a device's interface index in the root context.
func Index(t testing.TB, device string) int {
	t.Helper()
	states, err := port.List("test")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range states {
		if s.Device == device {
			return s.Index
		}
	}
	t.Fatalf("there is no device %s", device)
	return 0
}

// Tap is a raw socket on a node's interface: frames in and out.
type Tap struct {
	fd, index int
}

// Tap opens a raw socket in the node, which sees what comes in there.
func (n *Node) Tap(t testing.TB, name string) *Tap {
	t.Helper()
	p := &Tap{}
	err := n.Do(func() (err error) {
		if p.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(htons(unix.ETH_P_ALL))); err != nil {
			return err
		}
		i, err := net.InterfaceByName(name)
		if err != nil {
			return err
		}
		p.index = i.Index
		return errors.Join(
			unix.SetsockoptInt(p.fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
			unix.SetsockoptInt(p.fd, unix.SOL_PACKET, unix.PACKET_AUXDATA, 1),
			unix.SetsockoptInt(p.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20),
			unix.Bind(p.fd, &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_ALL), Ifindex: p.index}),
		)
	})
	if err != nil {
		t.Fatalf("open a raw socket on %s: %v", name, err)
	}
	t.Cleanup(func() { unix.Close(p.fd) })
	return p
}

func htons(v uint16) uint16 { return v<<8 | v>>8 }

// Send sends a frame as it is.
func (p *Tap) Send(frame []byte) error { return unix.Send(p.fd, frame, 0) }

// Receive waits for a frame that want accepts; others are passed over. A VLAN
// tag is where it was on the wire. nil: none came in time.
func (p *Tap) Receive(within time.Duration, want func(frame []byte) bool) []byte {
	frame, _ := p.ReceiveFor(within, want)
	return frame
}

// ReceiveFor is Receive that also tells whom the kernel takes the frame to be
// for: unix.PACKET_HOST, PACKET_OTHERHOST and so on.
func (p *Tap) ReceiveFor(within time.Duration, want func(frame []byte) bool) (frame []byte, whom uint8) {
	deadline := time.Now().Add(within)
	buf, oob := make([]byte, 70000), make([]byte, 256)
	for {
		left := time.Until(deadline)
		if left <= 0 {
			return nil, 0
		}
		fds := []unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}}
		if n, err := unix.Poll(fds, int(left.Milliseconds())+1); n == 0 || err != nil {
			continue
		}
		n, on, _, from, err := unix.Recvmsg(p.fd, buf, oob, 0)
		if err != nil {
			continue
		}
		if frame := untag(buf[:n], oob[:on]); want(frame) {
			if from, ok := from.(*unix.SockaddrLinklayer); ok {
				whom = from.Pkttype
			}
			return frame, whom
		}
	}
}

// untag puts a tag that the kernel took out back into the frame.
func untag(frame, oob []byte) []byte {
	frame = append([]byte(nil), frame...)
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return frame
	}
	for _, m := range messages {
		// struct tpacket_auxdata: status, len, snaplen, mac, net, tci, tpid
		if m.Header.Type != unix.PACKET_AUXDATA || len(m.Data) < 20 {
			continue
		}
		status := uint32(m.Data[0]) | uint32(m.Data[1])<<8
		if status&unix.TP_STATUS_VLAN_VALID == 0 {
			continue
		}
		tag := []byte{m.Data[19], m.Data[18], m.Data[17], m.Data[16]}
		frame = append(frame[:12:12], append(tag, frame[12:]...)...)
	}
	return frame
}
