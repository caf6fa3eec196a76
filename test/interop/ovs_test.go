package interop

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"trellis/internal/bench"
	"trellis/internal/substrate/nstest"
)

const ovsSchema = "/usr/share/openvswitch/vswitch.ovsschema"

// needOVS skips the test where Open vSwitch is not installed.
func needOVS(t testing.TB) {
	t.Helper()
	for _, program := range []string{"ovsdb-tool", "ovsdb-server", "ovs-vswitchd", "ovs-vsctl", "ovs-ofctl"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("needs %s: install the packages that scripts/packages lists", program)
		}
	}
	if _, err := os.Stat(ovsSchema); err != nil {
		t.Skipf("needs the schema of Open vSwitch's database: %v", err)
	}
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		t.Skipf("needs tap devices, which Open vSwitch's userspace datapath makes: %v", err)
	}
}

// ovs is an Open vSwitch with a database and directories of its own. The bridge
// br-phy holds the uplink and the address that its tunnels end at; each link has
// a bridge of two ports, joined by flows, so that it forwards every frame.
type ovs struct {
	own, other *host
	underlay   underlay
	dir        string
	links      int
	options    string // more options of the interfaces of type gre
	keyless    bool   // leave the key out
}

func newOVS(t testing.TB, own, other *host, u underlay) *ovs {
	t.Helper()
	s := &ovs{own: own, other: other, underlay: u, dir: t.TempDir()}
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		for _, name := range []string{"ovsdb.log", "vswitchd.log"} {
			log, _ := os.ReadFile(filepath.Join(s.dir, name))
			for line := range strings.Lines(string(log)) {
				if strings.Contains(line, "|WARN|") || strings.Contains(line, "|ERR|") {
					t.Logf("%s: %s", name, line)
				}
			}
		}
	})
	s.run(t, "ovsdb-tool", "create", s.path("conf.db"), ovsSchema)
	own.start(t, s.env(), "ovsdb-server", s.path("conf.db"), "--remote=punix:"+s.path("db.sock"),
		"--unixctl="+s.path("ovsdb.ctl"), "--log-file="+s.path("ovsdb.log"), "-vconsole:off")
	s.appears(t, "db.sock")
	s.vsctl(t, "--no-wait init")
	own.start(t, s.env(), "ovs-vswitchd", "unix:"+s.path("db.sock"),
		"--unixctl="+s.path("vswitchd.ctl"), "--log-file="+s.path("vswitchd.log"), "-vconsole:off")
	s.appears(t, "vswitchd.ctl")
	s.vsctl(t, fmt.Sprintf("add-br br-phy -- set bridge br-phy datapath_type=netdev other-config:hwaddr=%s -- add-port br-phy up0", text(own.mac)))
	own.Must(t, "ip link set up0 up")
	own.address(t, "br-phy")
	return s
}

func (s *ovs) path(name string) string { return filepath.Join(s.dir, name) }

func (s *ovs) env() []string {
	return []string{"OVS_RUNDIR=" + s.dir, "OVS_LOGDIR=" + s.dir, "OVS_DBDIR=" + s.dir, "OVS_SYSCONFDIR=" + s.dir}
}

// run runs one of Open vSwitch's programs.
func (s *ovs) run(t testing.TB, program string, args ...string) string {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), s.env()...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, out)
	}
	return string(out)
}

func (s *ovs) vsctl(t testing.TB, command string) {
	t.Helper()
	s.run(t, "ovs-vsctl", append([]string{"--timeout=20", "--db=unix:" + s.path("db.sock")}, strings.Fields(command)...)...)
}

// appears waits until somebody listens at a socket; its name is there before.
func (s *ovs) appears(t testing.TB, name string) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		c, err := net.Dial("unix", s.path(name))
		if err == nil {
			c.Close()
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("nobody listens at %s: %v", name, err)
		}
	}
}

// link joins a pair of devices with a tunnel. The datapath reads frames by a raw
// socket and finishes no checksum, so the guest's own stack does.
func (s *ovs) link(t testing.TB, n *nstest.Node, name string, key uint32, mtu int) {
	t.Helper()
	s.links++
	bridge, outer, tunnel := fmt.Sprintf("br%d", s.links), fmt.Sprintf("g%d", s.links), fmt.Sprintf("t%d", s.links)
	// Two VLAN tags over the MTU, as a port of Trellis carries.
	s.own.Must(t, fmt.Sprintf("ip link add %s mtu %d type veth peer name %s mtu %d netns %d; ip link set %[1]s up", outer, mtu+4, name, mtu, n.Pid))
	must(t, n.Do(func() error { return bench.SetChecksumOffload(name, false) }))
	n.Must(t, fmt.Sprintf("ip link set %s up", name))
	options := s.options
	if !s.keyless {
		options += fmt.Sprintf(" options:key=%d", key)
	}
	s.vsctl(t, fmt.Sprintf("add-br %[1]s -- set bridge %[1]s datapath_type=netdev fail-mode=secure -- add-port %[1]s %[2]s"+
		" -- add-port %[1]s %[3]s -- set interface %[3]s type=gre options:local_ip=%[4]v options:remote_ip=%[5]v %[6]s",
		bridge, outer, tunnel, s.own.addr(s.underlay), s.other.addr(s.underlay), options))
	for _, way := range [][2]string{{outer, tunnel}, {tunnel, outer}} {
		s.run(t, "ovs-ofctl", "add-flow", "unix:"+s.path(bridge+".mgmt"), fmt.Sprintf("in_port=%s,actions=output:%s", way[0], way[1]))
	}
}
