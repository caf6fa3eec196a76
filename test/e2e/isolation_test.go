package e2e

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"trellis/test/testenv"
)

// twin is a network whose addresses, MAC addresses included, are the same
// whatever its name.
const twin = `name: %s
routing: static
nodes: {a: {}, b: {}}
links:
  - name: wire
    endpoints:
      - {node: a, interface: eth1, mac: "02:00:00:00:01:01", addresses: [10.1.0.1/24, "fd01::1/64"]}
      - {node: b, interface: eth1, mac: "02:00:00:00:01:02", addresses: [10.1.0.2/24, "fd01::2/64"]}
  - name: seg
    type: lan
    endpoints:
      - {node: a, interface: lan0, mac: "02:00:00:00:02:01", addresses: [10.2.0.1/24, "fd02::1/64"]}
      - {node: b, interface: lan0, mac: "02:00:00:00:02:02", addresses: [10.2.0.2/24, "fd02::2/64"]}
`

func mac(t *testing.T, text string) net.HardwareAddr {
	t.Helper()
	m, err := net.ParseMAC(text)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestNoFrameLeavesItsNetwork sends what a node's root can send to find a way
// out: into a network with the same addresses, or into the root context.
func TestNoFrameLeavesItsNetwork(t *testing.T) {
	t.Parallel()
	s := testenv.StartService(t, testenv.Options{})
	// The root context has what there is to be reached: addresses, one of them
	// in the networks' own subnet, forwarding, and a listener.
	s.NS.IPBatch(t, "link add up0 type veth peer name up1 netns "+testenv.NewNetNS(t).Path(), "link set up0 up", "addr add 198.51.100.1/24 dev up0",
		"addr add 10.1.0.99/24 dev up0", "addr add fd01::99/64 dev up0 nodad")
	testenv.Run(t, s.NS.Command("sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1",
		"net.ipv4.conf.all.accept_source_route=1", "net.ipv4.conf.all.rp_filter=0", "net.ipv4.conf.default.rp_filter=0"))
	t.Cleanup(func() { s.NS.IP(t, "link", "del", "up0") })
	for _, name := range []string{"left", "right"} {
		s.Must("up", write(t, name+".yaml", fmt.Sprintf(twin, name)))
	}
	left, right := show(t, s, "left"), show(t, s, "right")
	if l, r := left.Nodes[0].Loopbacks, right.Nodes[0].Loopbacks; !slices.Equal(l, r) {
		t.Fatalf("the networks differ in their loopbacks, %v and %v, and show little", l, r)
	}
	rootMACs := map[string]net.HardwareAddr{}
	for _, nic := range strings.Split(s.NS.IP(t, "-o", "link"), "\n") {
		fields := strings.Fields(nic)
		if i := slices.Index(fields, "link/ether"); i > 0 {
			name, _, _ := strings.Cut(strings.TrimSuffix(fields[1], ":"), "@")
			rootMACs[name] = mac(t, fields[i+1])
		}
	}
	if len(rootMACs) < 8 {
		t.Fatalf("the root context has the interfaces %v", rootMACs)
	}

	mark := []byte("frame of the left network")
	var root net.IP = net.IPv4(198, 51, 100, 1)
	before := rootReceived(t, s)
	strangers := []*tap{openTap(t, right.pid(t, "a"), ""), openTap(t, right.pid(t, "b"), "")}
	friend := openTap(t, left.pid(t, "b"), "")
	for nic, src := range map[string]string{"eth1": "02:00:00:00:01:01", "lan0": "02:00:00:00:02:01"} {
		from := openTap(t, left.pid(t, "a"), nic)
		destinations := []string{
			"ff:ff:ff:ff:ff:ff", "01:00:5e:00:00:01", "33:33:00:00:00:01", "33:33:ff:00:00:99", "01:80:c2:00:00:00", "01:80:c2:00:00:01",
			"01:80:c2:00:00:03", "01:80:c2:00:00:0e", "01:1b:19:00:00:00", "02:00:00:00:01:02", "02:00:00:00:02:02", "02:fe:fe:fe:fe:fe",
			"00:00:00:00:00:00",
		}
		for _, m := range rootMACs {
			destinations = append(destinations, m.String())
		}
		payloads := map[string][]byte{}
		v4 := func(src, dst net.IP, options []byte) []byte { return ipv4(src, dst, options, mark) }
		own := net.IPv4(10, 1, 0, 1)
		loose := []byte{131, 11, 4, 198, 51, 100, 1, 10, 1, 0, 2, 0} // LSRR, RFC 791 section 3.1
		payloads["08 00 to the root context"] = v4(own, root, nil)
		payloads["08 00 to its address in the same subnet"] = v4(own, net.IPv4(10, 1, 0, 99), nil)
		payloads["08 00 from the root context's own address"] = v4(root, net.IPv4(10, 1, 0, 99), nil)
		payloads["08 00 from 127.0.0.1"] = v4(net.IPv4(127, 0, 0, 1), net.IPv4(127, 0, 0, 1), nil)
		payloads["08 00 source-routed"] = v4(own, root, loose)
		payloads["08 00 to all hosts"] = v4(own, net.IPv4(224, 0, 0, 1), nil)
		payloads["08 00 to everybody"] = v4(own, net.IPv4bcast, nil)
		payloads["08 06 for the root context"] = append(arpRequest(mac(t, src), own, net.IPv4(10, 1, 0, 99)), mark...)
		payloads["08 06 for its other address"] = append(arpRequest(mac(t, src), own, root), mark...)
		all, self := net.ParseIP("ff02::1"), net.ParseIP("fe80::1")
		solicit := append([]byte{135, 0, 0, 0, 0, 0, 0, 0}, net.ParseIP("fd01::99").To16()...) // RFC 4861 section 4.3
		payloads["86 dd to all nodes"] = ipv6(self, all, 17, append([]byte{0x0f, 0xa0, 0, 7, 0, 33, 0, 0}, mark...))
		payloads["86 dd to the root context"] = ipv6(net.ParseIP("fd01::1"), net.ParseIP("fd01::99"), 17, append([]byte{0x0f, 0xa0, 0, 7, 0, 33, 0, 0}, mark...))
		payloads["86 dd solicitation"] = append(ipv6(self, net.ParseIP("ff02::1:ff00:99"), 58, solicit), mark...)
		for _, kind := range []string{"88 cc", "88 b5", "88 08", "88 09", "81 00", "88 a8", "88 47", "88 63", "89 02", "00 2e", "93 00"} {
			payloads[kind] = append([]byte{0, 1, 8, 0}, mark...) // after a VLAN tag: VLAN 1, IPv4
		}
		for what, payload := range payloads {
			var kind [2]byte
			if _, err := fmt.Sscanf(what, "%x %x", &kind[0], &kind[1]); err != nil {
				t.Fatal(err)
			}
			for _, dst := range destinations {
				for _, from2 := range []net.HardwareAddr{mac(t, src), mac(t, dst)} { // its own, and somebody else's
					from.send(t, ethernet(mac(t, dst), from2, uint16(kind[0])<<8|uint16(kind[1]), payload))
				}
			}
		}
	}
	seen := 0
	eventually(t, 20*time.Second, "the neighbour has seen so many of the frames that the test shows something", func() bool {
		seen += marked(friend.received(t), mark)
		return seen >= 500
	})
	time.Sleep(300 * time.Millisecond) // what should not come
	for _, stranger := range strangers {
		if n := marked(stranger.received(t), mark); n > 0 {
			t.Errorf("%d frames of the left network are in the right one", n)
		}
	}
	if after := rootReceived(t, s); after != before {
		t.Errorf("the root context's stack has received packets: before %s, after %s", before, after)
	}

	t.Run("from a root shell", func(t *testing.T) {
		sh(t, s, "left/a", "ip route add 198.51.100.1 dev eth1 && ip neigh add 198.51.100.1 lladdr "+
			rootMACs[left.device(t, "a", "eth1")].String()+" dev eth1")
		for _, command := range []string{
			"ping -c1 -W1 198.51.100.1", "ping -c1 -W1 10.1.0.99", "ping -c1 -W1 fd01::99", "ping -c1 -W1 -I lan0 10.1.0.99",
		} {
			if out, _, code := s.Trellis("exec", "left/a", "--", "sh", "-c", command); code == 0 {
				t.Errorf("%s is answered: %s", command, out)
			}
		}
		// Of all nodes on the wire, the other end answers, and nobody else.
		out, _, _ := s.Trellis("exec", "left/a", "--", "ping", "-c2", "-W1", "ff02::1%eth1")
		answers := map[string]bool{}
		for line := range strings.Lines(out) {
			if _, rest, ok := strings.Cut(line, "bytes from "); ok {
				who, _, _ := strings.Cut(rest, "%")
				answers[who] = true
			}
		}
		if len(answers) != 2 || !answers["fe80::ff:fe00:101"] || !answers["fe80::ff:fe00:102"] {
			t.Errorf("%v answer on a wire with two ends: %s", answers, out)
		}
	})

	t.Run("to both at once", func(t *testing.T) {
		// The same addresses, and each network pings its own node.
		for _, name := range []string{"left", "right"} {
			if p := decode[ping](t, s.Must("ping", name, "-o", "json")); p.Pairs != 4 || p.Reachable != 4 {
				t.Errorf("%s: ping says %+v", name, p)
			}
		}
		s.Must("link", "set", "right", "wire", "--down")
		sh(t, s, "left/a", "ping -c1 -W2 10.1.0.2")
		if out, _, code := s.Trellis("exec", "right/a", "--", "ping", "-c1", "-W1", "-I", "eth1", "10.1.0.2"); code == 0 {
			t.Errorf("a node behind a pulled cable answers: %s", out)
		}
		s.Must("link", "set", "right", "wire", "--up")
	})
}

// marked counts the frames that hold the mark.
func marked(frames [][]byte, mark []byte) (n int) {
	for _, f := range frames {
		if bytes.Contains(f, mark) {
			n++
		}
	}
	return n
}

// rootReceived gives the root context's counts of packets and ARP entries.
func rootReceived(t *testing.T, s *testenv.Service) string {
	t.Helper()
	return testenv.Run(t, s.NS.Command("sh", "-c",
		`awk '/^Ip: [0-9]/ {print "ipv4", $4}' /proc/net/snmp; awk '/^Ip6InReceives/ {print "ipv6", $2}' /proc/net/snmp6; tail -n +2 /proc/net/arp`))
}

// sh runs a shell command in a node and returns its output.
func sh(t *testing.T, s *testenv.Service, node, command string) string {
	t.Helper()
	stdout, stderr, code := s.Trellis("exec", node, "--", "sh", "-c", command)
	if code != 0 {
		t.Fatalf("%s: %s: exit status %d\n%s%s", node, command, code, stdout, stderr)
	}
	return strings.TrimSpace(stdout)
}

// TestRateHoldsWhateverTheNodeDoes floods a link of 10 Mbit/s while the node's
// root changes all of its end that it can change.
func TestRateHoldsWhateverTheNodeDoes(t *testing.T) {
	testenv.Measures(t)
	s := testenv.StartService(t, testenv.Options{})
	file := write(t, "slow.yaml", `name: slow
routing: static
defaults: {node: {repair: never}}
nodes: {a: {}, b: {}}
links:
  - {name: wire, rate: 10mbit, endpoints: [{node: a, interface: eth1, addresses: [10.1.0.1/24, "fd01::1/64"]}, {node: b, interface: eth1, addresses: [10.1.0.2/24, "fd01::2/64"]}]}
`)
	s.Must("up", file, "--timeout", "20s")
	v := show(t, s, "slow")
	root := func() string {
		return testenv.Run(t, s.NS.Command("tc", "qdisc", "show", "dev", v.device(t, "b", "eth1")))
	}
	qdisc := root()
	for _, c := range []struct{ name, command string }{
		{"as it is", "true"},
		{"another qdisc", "tc qdisc replace dev eth1 root pfifo limit 100000; tc qdisc add dev eth1 clsact"},
		{"a long queue and segmentation", "ip link set eth1 txqueuelen 1000000; ethtool -K eth1 tso on gso on tx on; ip link set eth1 gso_max_size 65536"},
		{"a large MTU", "ip link set eth1 mtu 9000"},
		{"another MAC", "ip link set eth1 address 02:00:00:00:99:99"},
		{"another name", "ip link set eth1 down; ip link set eth1 name fast0; ip link set fast0 up"},
	} {
		t.Run(c.name, func(t *testing.T) {
			// Some of it is refused, which is as well.
			_, _, _ = s.Trellis("exec", "slow/a", "--", "sh", "-c", c.command)
			sh(t, s, "slow/a", "ip -br link show type veth | grep -q UP")
			sh(t, s, "slow/a", "ip addr replace 10.1.0.1/24 dev $(ip -br link show type veth | sed 's/[@ ].*//')")
			least := 0.0
			if c.command == "true" {
				least = 7e6
			}
			floods(t, v.pid(t, "a"), v.pid(t, "b"), "10.1.0.2:9", least, 10.8e6)
			if now := root(); now != qdisc {
				t.Errorf("the link's qdisc was %s and is %s", qdisc, now)
			}
		})
	}
	t.Run("its interface deleted", func(t *testing.T) {
		// And its name taken by one that the service has not made: that is not
		// the service's to delete, and no way to go on.
		sh(t, s, "slow/a", "ip link del fast0; ip link add eth1 type veth peer name x; ip link set eth1 up")
		if _, stderr, code := s.Trellis("up", file, "--timeout", "20s"); code != 1 || !strings.Contains(stderr, "eth1") {
			t.Errorf("up where the name eth1 is taken: exit status %d, %s", code, stderr)
		}
		sh(t, s, "slow/a", "ip link del eth1")
		if _, stderr, code := s.Trellis("up", file, "--timeout", "20s"); code != 0 {
			t.Fatalf("up does not repair the link: %s", stderr)
		}
		sh(t, s, "slow/a", "ping -c1 -W2 10.1.0.2")
		v = show(t, s, "slow")
		floods(t, v.pid(t, "a"), v.pid(t, "b"), "10.1.0.2:9", 7e6, 10.8e6)
	})
	s.Must("down", "slow")
	nothingLeft(t, s)
}

// floods floods a link of 10 Mbit/s and fails the test unless the rate is within
// the bounds, bits per second. A machine with other things to do may send less
// for a while, never more.
func floods(t *testing.T, from, to int, address string, least, most float64) {
	t.Helper()
	rate := 0.0
	for range 5 {
		if rate = flood(t, from, to, address); rate >= least {
			break
		}
	}
	if rate < least || rate > most {
		t.Errorf("%.1f Mbit/s go through a link of 10, want %.1f to %.1f", rate/1e6, least/1e6, most/1e6)
	}
}

// flood sends datagrams as fast as it can for a second and gives the rate at
// which they arrive, in bits per second of whole frames, by the kernel's clock:
// how late this process reads them does not matter.
func flood(t *testing.T, from, to int, address string) float64 {
	t.Helper()
	const headers = 14 + 20 + 8
	var in *net.UDPConn
	var out net.Conn
	if err := inside(to, func() (err error) {
		in, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(address)))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if err := errors.Join(forceReadBuffer(in, 16<<20), timestamp(in)); err != nil {
		t.Fatal(err)
	}
	if err := inside(from, func() (err error) { out, err = net.Dial("udp4", address); return err }); err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	// The first packets are the burst that a link may carry beyond its rate, and
	// the kernel takes a moment to turn its time stamps on.
	begin := time.Now().Add(200 * time.Millisecond)
	end := begin.Add(1200 * time.Millisecond)
	go func() {
		b := make([]byte, 1400)
		for time.Now().Before(end) {
			if _, err := out.Write(b); err != nil {
				time.Sleep(100 * time.Microsecond) // the queue is full
			}
		}
	}()
	b, oob := make([]byte, 64<<10), make([]byte, 1<<10)
	var bits float64
	var first, last time.Time
	if err := in.SetReadDeadline(end.Add(500 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	for {
		n, extra, _, _, err := in.ReadMsgUDPAddrPort(b, oob)
		if err != nil {
			break // the deadline
		}
		at, err := arrival(oob[:extra])
		if err != nil {
			t.Fatal(err)
		}
		if at.Before(begin) {
			continue
		}
		last = at
		if first.IsZero() {
			first = last // counted from here on, this one not
			continue
		}
		bits += float64(n+headers) * 8
	}
	if bits == 0 {
		t.Fatal("nothing arrives")
	}
	return bits / last.Sub(first).Seconds()
}

// timestamp has the kernel tell when it received each packet of a socket.
func timestamp(c *net.UDPConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1)
	})
	return errors.Join(err, failed)
}

// arrival reads when the kernel received a packet.
func arrival(oob []byte) (time.Time, error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return time.Time{}, err
	}
	for _, m := range messages {
		if m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SCM_TIMESTAMPNS {
			var at unix.Timespec
			if _, err := binary.Decode(m.Data, binary.NativeEndian, &at); err != nil {
				return time.Time{}, err
			}
			return time.Unix(at.Unix()), nil
		}
	}
	return time.Time{}, errors.New("a packet without a time stamp")
}

// TestAttacksThroughExec tries what a node's root would try to get out of it.
func TestAttacksThroughExec(t *testing.T) {
	t.Parallel()
	s := testenv.StartService(t, testenv.Options{})
	s.Must("up", write(t, "left.yaml", fmt.Sprintf(twin, "left")))
	left := show(t, s, "left")
	victim := exec.Command("sleep", "300")
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { victim.Process.Kill(); victim.Wait() })
	secret := write(t, "secret", "the machine's own\n")
	if err := os.Chmod(secret, 0o644); err != nil {
		t.Fatal(err)
	}
	shadow := ""
	if b, err := os.ReadFile("/etc/shadow"); err == nil {
		shadow = strings.TrimSpace(string(b))
	}
	hidden := []string{"the machine's own", s.RunDir, s.StateDir, "trellis-" + s.Instance}
	if line, _, _ := strings.Cut(shadow, "\n"); len(line) > 10 {
		hidden = append(hidden, line)
	}
	devices := []string{left.device(t, "a", "eth1"), left.device(t, "b", "eth1")}

	t.Run("what is there tells nothing", func(t *testing.T) {
		out, _, _ := s.Trellis("exec", "left/a", "--", "sh", "-c", `cat /etc/shadow /etc/passwd /proc/mounts /proc/self/mountinfo /proc/self/cgroup \
			/proc/1/environ /proc/1/cmdline /proc/net/unix /proc/*/environ /proc/cmdline 2>/dev/null; ls -la / /run /tmp /var /etc /proc/1/fd /proc/1/root/ /sys/class/net 2>/dev/null; ip -d link`)
		for _, h := range append(hidden, devices...) {
			if strings.Contains(out, h) {
				t.Errorf("%q is visible", h)
			}
		}
		if n := sh(t, s, "left/a", "ls -d /proc/[0-9]* | wc -l"); len(n) > 1 {
			t.Errorf("%s processes are visible", n)
		}
	})

	for _, attack := range []struct{ what, command string }{
		{"a file of the machine", "cat " + secret},
		{"the run directory", "ls " + s.RunDir},
		{"the service's socket", "test -S " + s.RunDir + "/trellis.sock"},
		{"/proc/1/root", "test -e /proc/1/root" + secret},
		{"signal to a process of the machine", "kill -9 " + strconv.Itoa(victim.Process.Pid)},
		{"signal to the service", "kill -9 " + strconv.Itoa(s.PID())},
		{"signal to another node", "kill -9 " + strconv.Itoa(left.pid(t, "b"))},
		{"memory of the kernel", "head -c1 /proc/kcore | grep -q ."},
		{"kernel addresses", "head -1 /proc/kallsyms | grep -v '^0000000000000000' | grep -q ."},
		{"debugfs", "mkdir -p /tmp/d && mount -t debugfs none /tmp/d"},
		{"debugfs in /sys", "ls /sys/kernel/debug/tracing"},
		{"bpffs", "mkdir -p /tmp/d && mount -t bpf none /tmp/d"},
		{"a cgroup file system", "mkdir -p /tmp/d && mount -t cgroup -o memory none /tmp/d"},
		{"a cgroup2 file system", "mkdir -p /tmp/d && mount -t cgroup2 none /tmp/d"},
		{"a proc of its own", "mkdir -p /tmp/d && mount -t proc none /tmp/d"},
		{"a tmpfs", "mkdir -p /tmp/d && mount -t tmpfs none /tmp/d"},
		{"remounting /usr", "mount -o remount,rw /usr"},
		{"writing to /usr", "touch /usr/bin/x"},
		{"writing to /sys", "echo 1 > /sys/kernel/mm/ksm/run"},
		{"a core pattern", "echo '|/tmp/x' > /proc/sys/kernel/core_pattern"},
		{"sysrq", "echo h > /proc/sysrq-trigger"},
		{"a block device", "mknod /tmp/sda b 8 0"},
		{"kernel memory's device", "mknod /tmp/mem c 1 1"},
		{"/dev/mem", "head -c1 /dev/mem"},
		{"the kernel's log", "dmesg | grep -q ."},
		{"a user namespace", "unshare -Ur true"},
		{"a network namespace", "unshare -n true"},
		{"the namespaces of PID 1", "nsenter -t 1 -m -n true"},
		{"the root context as a place for an interface", "ip link set eth1 netns /proc/1/ns/net && ! ip link show eth1"},
		{"BPF on its interface", "ip link set dev eth1 xdp obj /dev/null"},
		{"BPF by tc", "tc qdisc add dev eth1 clsact && tc filter add dev eth1 ingress bpf da obj /dev/null"},
		{"classic tracing", "test -w /sys/kernel/tracing/trace"},
		{"modules", "insmod /tmp/x.ko || modprobe dummy9"},
		{"its own limits", "echo 1000 > /sys/fs/cgroup/pids.max || echo 1000 > /sys/fs/cgroup/pids/pids.max"},
		{"the clock", "date -s 2001-01-01"},
		{"the host's name", "hostname evil && test $(cat /proc/sys/kernel/hostname) = " + hostname(t)},
	} {
		t.Run(attack.what, func(t *testing.T) {
			if out, _, code := s.Trellis("exec", "left/a", "--", "sh", "-c", attack.command); code == 0 {
				t.Errorf("%q succeeds: %s", attack.command, out)
			}
		})
	}

	t.Run("system calls", func(t *testing.T) {
		testenv.NeedCommand(t, "python3")
		if _, err := os.Stat("/usr/bin/python3"); err != nil {
			t.Skipf("needs /usr/bin/python3: %v", err)
		}
		// Names and arguments as on amd64 and arm64, by their numbers there.
		script := `
import ctypes, errno, os, platform
libc = ctypes.CDLL(None, use_errno=True)
x86 = platform.machine() == "x86_64"
calls = {
  "bpf": (321, 280, [0, 0, 0]), "mount": (165, 40, [0, 0, 0, 0, 0]), "umount2": (166, 39, [0, 0]), "pivot_root": (155, 41, [0, 0]),
  "unshare": (272, 97, [0x10000000]), "setns": (308, 268, [0, 0]), "ptrace": (101, 117, [0, 0, 0, 0]), "keyctl": (250, 219, [0, -3, 1]),
  "add_key": (248, 217, [0, 0, 0, 0, -3]), "io_uring_setup": (425, 425, [1, 0]), "userfaultfd": (323, 282, [1]), "kexec_load": (246, 104, [0, 0, 0, 0]),
  "init_module": (175, 105, [0, 0, 0]), "finit_module": (313, 273, [-1, 0, 0]), "delete_module": (176, 106, [0, 0]), "reboot": (169, 142, [0, 0, 0, 0]),
  "perf_event_open": (298, 241, [0, 0, -1, -1, 0]), "process_vm_readv": (310, 270, [1, 0, 0, 0, 0, 0]), "open_by_handle_at": (304, 265, [-1, 0, 0]),
  "swapon": (167, 224, [0, 0]), "fsopen": (430, 430, [0, 0]), "open_tree": (428, 428, [-1, 0, 0]), "move_mount": (429, 429, [-1, 0, -1, 0, 0]),
  "clone3": (435, 435, [0, 0]), "pidfd_getfd": (438, 438, [-1, 0, 0]), "fanotify_init": (300, 262, [0, 0]), "settimeofday": (164, 170, [0, 0]),
  "quotactl": (179, 60, [0, 0, 0, 0]), "acct": (163, 89, [0]), "syslog": (103, 116, [3, 0, 0]),
}
for name, (a, b, args) in calls.items():
    ctypes.set_errno(0)
    r = libc.syscall(ctypes.c_long(a if x86 else b), *[ctypes.c_long(v) for v in args])
    e = ctypes.get_errno()
    if r != -1 or e not in (errno.EPERM, errno.ENOSYS):
        print(name, r, e)
`
		if out := sh(t, s, "left/a", "/usr/bin/python3 - <<'EOP'\n"+script+"\nEOP"); out != "" {
			t.Errorf("not refused, with result and errno:\n%s", out)
		}
	})

	t.Run("and all is as it was", func(t *testing.T) {
		if err := victim.Process.Signal(syscall.Signal(0)); err != nil {
			t.Errorf("a process of the machine is gone: %v", err)
		}
		if !s.Running() {
			t.Error("the service is gone")
		}
		after := show(t, s, "left")
		if after.pid(t, "b") != left.pid(t, "b") {
			t.Error("another node was restarted")
		}
		s.Must("ping", "left")
	})
}

func hostname(t *testing.T) string {
	t.Helper()
	name, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	return name
}
