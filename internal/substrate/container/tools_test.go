package container

import (
	"os/exec"
	"strings"
	"testing"
)

// TestToolsWithoutSysfs: nodes of the image host have no sysfs; what people use in
// them works all the same.
func TestToolsWithoutSysfs(t *testing.T) {
	r := newRuntime(t, Config{})
	s := spec("a")
	mustStart(t, r, s)
	if out := mustRun(t, r, s.ID, "ls -A /sys; grep -c sysfs /proc/mounts || true"); out != "0" {
		t.Fatalf("/sys holds %q", out)
	}
	mustRun(t, r, s.ID, "ip link add v0 type veth peer name v1; ip addr add 192.0.2.1/24 dev v0; ip link set v0 up; ip link set v1 up; ip link set lo up")
	for _, c := range []struct{ program, command, want string }{
		{"ip", "ip -d -s link show v0", "veth"},
		{"ip", "ip link add b0 type bridge && ip link set v1 master b0 && ip -br link", "b0"},
		{"bridge", "bridge link show", "b0"},
		{"tc", "tc qdisc add dev v0 root tbf rate 1mbit burst 10kb latency 50ms && tc qdisc show dev v0", "tbf"},
		{"ethtool", "ethtool v0; ethtool -i v0; ethtool -k v0", "veth"},
		{"tcpdump", "tcpdump -D; timeout 5 tcpdump -c 1 -ni lo & sleep 0.5; ping -c 1 127.0.0.1 >/dev/null; wait", "127.0.0.1"},
		{"ss", "ss -tuln", "Netid"},
		{"nft", "nft add table ip x && nft list tables", "table ip x"},
		{"python3", "python3 -c 'import socket; print([n for _, n in socket.if_nameindex()])'", "v0"},
		{"birdc", "mkdir -p /run/bird; printf 'router id 192.0.2.1;\nprotocol device {}\nprotocol direct { ipv4; }\n' > /tmp/b.conf; bird -c /tmp/b.conf -s /run/bird/b.ctl && sleep 1 && birdc -s /run/bird/b.ctl show route", "192.0.2.0/24"},
		{"vtysh", "/usr/lib/frr/zebra -d -A 127.0.0.1 && sleep 1 && vtysh -c 'show ip route' -c 'show interface v0'", "192.0.2.0/24"},
	} {
		if _, err := exec.LookPath(c.program); err != nil {
			t.Logf("%s is not installed: not tried", c.program)
			continue
		}
		if out, code := run(t, r, s.ID, c.command); code != 0 || !strings.Contains(out, c.want) {
			t.Errorf("%s: exit code %d: %s", c.command, code, out)
		}
	}
}
