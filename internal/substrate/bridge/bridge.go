// Package bridge makes the Linux bridges that carry LANs. Bridges here are dumb:
// they learn where stations are, and flood what they do not know; they speak no
// protocol, filter nothing, and are closed to the root context's own stack.
//
// What a bridge would keep to itself (STP, LACP, LLDP, MAC pause and the other
// link-local group addresses) the programs on its members carry past it, and
// past br_netfilter: see bpf/lan.bpf.c, and attach dataplane.Bridge to the
// bridge and dataplane.Member to each member before they go up.
//
// Every function works in the network namespace of the calling thread.
package bridge

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"trellis/internal/substrate/rtnl"
	"trellis/internal/substrate/sysctl"
	"trellis/internal/vnet"
)

// Bridge describes the bridge of one LAN on one substrate node.
type Bridge struct {
	Name  string // the device, at most 15 bytes
	Alias string // trellis:<instance>:<vnet>/@<link>
	Group uint32 // the VNet's link group
	MTU   int    // of the LAN's IP packets, bytes
}

// maxStations bounds what a LAN learns, so that a node that invents source
// addresses fills its LAN's table and not the machine's memory. Beyond it,
// frames are flooded. (Kernel 6.7, commit ddd1ad68826d; earlier ones ignore it.)
const maxStations = 16384

const ownAliasStart = "trellis:"

// Ensure makes the bridge, or sets it right. It does not take it up: that is
// port.SetUp's, once the data plane is attached.
func Ensure(b Bridge) error {
	c, err := rtnl.Dial()
	if err != nil {
		return err
	}
	defer c.Close()
	links, err := c.LinksNamed(b.Name)
	if err != nil {
		return fmt.Errorf("make the bridge %s: %w", b.Name, err)
	}
	var batch rtnl.Batch
	flags := uint16(unix.NLM_F_CREATE | unix.NLM_F_EXCL)
	if have, there := links[b.Name]; there {
		if !strings.HasPrefix(have.Alias, ownAliasStart) || have.Kind != "bridge" {
			return fmt.Errorf("a device named %s exists on this machine and is not a bridge of Trellis's; rename it (ip link set %s name …) or remove it, then try again: %w",
				b.Name, b.Name, unix.EEXIST)
		}
		flags = 0
	}
	b.request(&batch, flags)
	failed, err := c.Execute(&batch)
	if err == nil && len(failed) > 0 {
		err = failed[0].Err
	}
	if errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("make the bridge %s: this kernel has no bridges; load the module (modprobe bridge) or use a kernel with CONFIG_BRIDGE: %w", b.Name, err)
	}
	if err != nil {
		return fmt.Errorf("make the bridge %s: %w", b.Name, err)
	}
	batch.Reset()
	b.finish(&batch)
	failed, err = c.Execute(&batch)
	for _, f := range failed {
		err = errors.Join(err, f.Err)
	}
	if err = errors.Join(err, sysctl.DisableIPv6(b.Name)); err != nil {
		return fmt.Errorf("set up the bridge %s: %w", b.Name, err)
	}
	return nil
}

func (b *Bridge) request(m *rtnl.Batch, flags uint16) {
	const quiet = unix.IFF_NOARP
	m.Begin(unix.RTM_NEWLINK, flags, rtnl.LinkHeader(0, quiet, quiet|unix.IFF_MULTICAST))
	m.String(unix.IFLA_IFNAME, b.Name)
	if flags != 0 {
		// Only an MTU that was changed stays when members join or leave
		// (kernel 4.17, commit 804b854d374e), so it begins as another.
		m.Uint32(unix.IFLA_MTU, uint32(b.MTU)+1)
	}
	m.Uint32(unix.IFLA_GROUP, b.Group)
	mac := stableMAC(b.Name)
	m.Bytes(unix.IFLA_ADDRESS, mac[:])
	m.Nest(unix.IFLA_LINKINFO, func() {
		m.String(unix.IFLA_INFO_KIND, "bridge")
		m.Nest(unix.IFLA_INFO_DATA, func() {
			m.Uint32(unix.IFLA_BR_STP_STATE, 0)
			m.Uint8(unix.IFLA_BR_MCAST_SNOOPING, 0)
			m.Uint8(unix.IFLA_BR_NF_CALL_IPTABLES, 0)
			m.Uint8(unix.IFLA_BR_NF_CALL_IP6TABLES, 0)
			m.Uint8(unix.IFLA_BR_NF_CALL_ARPTABLES, 0)
			m.Uint32(unix.IFLA_BR_FDB_MAX_LEARNED, maxStations)
		})
	})
}

func (b *Bridge) finish(m *rtnl.Batch) {
	m.Begin(unix.RTM_SETLINK, 0, rtnl.LinkHeader(0, 0, 0))
	m.String(unix.IFLA_IFNAME, b.Name)
	m.String(unix.IFLA_IFALIAS, b.Alias)
	m.Uint32(unix.IFLA_MTU, uint32(b.MTU))
}

// stableMAC gives the bridge an address of its own, which keeps it from taking
// over its members' and udev from drawing one.
func stableMAC(device string) vnet.MAC {
	sum := sha256.Sum256([]byte("trellis bridge " + device))
	m := vnet.MAC(sum[:6])
	m[0] = m[0]&^0x03 | 0x02
	return m
}

// SetPort enslaves device to bridge; an empty bridge frees it.
func SetPort(bridge, device string) error {
	return SetPorts(map[string]string{device: bridge})
}

// SetPorts is SetPort for many: it takes the bridge of each device. Devices
// that are where they should be stay undisturbed.
func SetPorts(bridges map[string]string) error {
	if len(bridges) == 0 {
		return nil
	}
	c, err := rtnl.Dial()
	if err != nil {
		return err
	}
	defer c.Close()
	names := make([]string, 0, 1)
	for _, bridge := range bridges {
		if bridge != "" && !slices.Contains(names, bridge) {
			names = append(names, bridge)
		}
	}
	links, err := c.LinksNamed(names...)
	if err != nil {
		return fmt.Errorf("enslave %d devices: %w", len(bridges), err)
	}
	var (
		b       rtnl.Batch
		devices []string
		errs    []error
	)
	for device, bridge := range bridges {
		l, ok := links[bridge] // the zero value of none frees
		if !ok && bridge != "" {
			errs = append(errs, fmt.Errorf("enslave %s: there is no bridge %s", device, bridge))
			continue
		}
		b.Begin(unix.RTM_SETLINK, 0, rtnl.LinkHeader(0, 0, 0))
		b.String(unix.IFLA_IFNAME, device)
		b.Uint32(unix.IFLA_MASTER, uint32(l.Index))
		devices = append(devices, device)
	}
	failed, err := c.Execute(&b)
	if err != nil {
		return fmt.Errorf("enslave %d devices: %w", len(devices), err)
	}
	for _, f := range failed {
		device := devices[f.Index]
		errs = append(errs, fmt.Errorf("enslave %s to %q: %w", device, bridges[device], f.Err))
	}
	return errors.Join(errs...)
}

// SetIsolated enslaves devices to bridge, each as an isolated port: no frame goes
// from one of them to another (IFLA_BRPORT_ISOLATED, kernel 4.18, commit
// 7d850abd5f4e). That is the split horizon of a LAN over several machines: what
// one of them has sent has been sent to all. The devices should be down.
func SetIsolated(bridge string, devices ...string) error {
	bridges := make(map[string]string, len(devices))
	for _, d := range devices {
		bridges[d] = bridge
	}
	if err := SetPorts(bridges); err != nil || len(devices) == 0 {
		return err
	}
	c, err := rtnl.Dial()
	if err != nil {
		return err
	}
	defer c.Close()
	var b rtnl.Batch
	for _, d := range devices {
		b.Begin(unix.RTM_NEWLINK, 0, rtnl.LinkHeader(0, 0, 0))
		b.String(unix.IFLA_IFNAME, d)
		b.Nest(unix.IFLA_LINKINFO, func() {
			b.String(unix.IFLA_INFO_SLAVE_KIND, "bridge")
			b.Nest(unix.IFLA_INFO_SLAVE_DATA, func() { b.Uint8(unix.IFLA_BRPORT_ISOLATED, 1) })
		})
	}
	failed, err := c.Execute(&b)
	if err != nil {
		return fmt.Errorf("isolate %d devices on %s: %w", len(devices), bridge, err)
	}
	var errs []error
	for _, f := range failed {
		errs = append(errs, fmt.Errorf("isolate %s on %s: %w", devices[f.Index], bridge, f.Err))
	}
	return errors.Join(errs...)
}
