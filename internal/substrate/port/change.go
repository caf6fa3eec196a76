package port

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"trellis/internal/substrate/rcu"
	"trellis/internal/substrate/rtnl"
	"trellis/internal/substrate/sysctl"
)

// aliasPrefix begins the alias of every device that Trellis owns.
const aliasPrefix = "trellis:"

// List gives every device of the instance in the calling thread's network
// namespace: ports, helpers and bridges. It reads the whole machine; what runs for
// long keeps a links.Table.
func List(instance string) ([]State, error) {
	c, err := rtnl.Dial()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	links, err := c.Links()
	if err != nil {
		return nil, fmt.Errorf("read the devices of the root context: %w", err)
	}
	names := make(map[int]string, len(links))
	for i := range links {
		names[links[i].Index] = links[i].Name
	}
	prefix := aliasPrefix + instance + ":"
	var states []State
	for i := range links {
		if strings.HasPrefix(links[i].Alias, prefix) {
			s := StateOf(&links[i])
			s.Master = names[links[i].Master]
			states = append(states, s)
		}
	}
	return states, nil
}

// StateOf gives what is known of a device of Trellis's from what the kernel says
// of it, but for the name of its bridge.
func StateOf(l *rtnl.Link) State {
	s := State{
		Device: l.Name, Alias: l.Alias, Kind: KindPort, Index: l.Index,
		Up: l.Up(), Carrier: l.Carrier(), MTU: l.MTU - tagRoom, Group: l.Group,
		Isolated: l.Isolated, Qdisc: l.Qdisc,
	}
	switch {
	case l.Kind == "bridge":
		s.Kind, s.MTU = KindBridge, l.MTU
	case strings.HasSuffix(l.Alias, shapedSuffix), strings.HasSuffix(l.Alias, memberSuffix):
		s.Kind = KindHelper
	case strings.Contains(l.Alias, tunnelMark) && strings.Contains(l.Alias, lanMark):
		s.Kind = KindTunnel
	}
	return s
}

// SetUp takes devices up (true) or down (false). A port that is down is a
// pulled cable: the node's end loses its carrier.
func SetUp(devices map[string]bool) error {
	return change(sorted(devices), "set the state of", func(b *rtnl.Batch, device string) {
		var flags uint32
		if devices[device] {
			flags = unix.IFF_UP
		}
		b.Begin(unix.RTM_SETLINK, 0, rtnl.LinkHeader(0, flags, unix.IFF_UP))
		b.String(unix.IFLA_IFNAME, device)
	})
}

// SetMTU sets the MTU of a port's or helper's link, in bytes of the IP packet.
// The inner end's is set by netns.
func SetMTU(device string, mtu int) error {
	err := change([]string{device}, "set the MTU of", func(b *rtnl.Batch, device string) {
		b.Begin(unix.RTM_SETLINK, 0, rtnl.LinkHeader(0, 0, 0))
		b.String(unix.IFLA_IFNAME, device)
		b.Uint32(unix.IFLA_MTU, uint32(mtu+tagRoom))
	})
	if err != nil {
		return err
	}
	return sysctl.DisableIPv6(device) // which a device gets with an MTU that suffices
}

// change sends one request for each device and joins the refusals.
func change(devices []string, what string, request func(*rtnl.Batch, string)) error {
	if len(devices) == 0 {
		return nil
	}
	c, err := rtnl.Dial()
	if err != nil {
		return err
	}
	defer c.Close()
	var b rtnl.Batch
	for _, d := range devices {
		request(&b, d)
	}
	failed, err := c.Execute(&b)
	if err != nil {
		return fmt.Errorf("%s %d devices: %w", what, len(devices), err)
	}
	var errs []error
	for _, f := range failed {
		errs = append(errs, fmt.Errorf("%s %s: %w", what, devices[f.Index], f.Err))
	}
	return errors.Join(errs...)
}

// Delete removes devices, of whatever number, together with their inner ends.
// Devices that do not exist are no error.
//
// One by one, each would wait about 20 ms for the kernel's readers to let go of
// it; so they are gathered in a link group of their own, and the group goes at
// once.
func Delete(devices ...string) error {
	if len(devices) == 0 {
		return nil
	}
	c, err := rtnl.Dial()
	if err != nil {
		return err
	}
	defer c.Close()
	var r [4]byte
	if _, err := rand.Read(r[:]); err != nil {
		return fmt.Errorf("pick a link group to delete %d devices by: %w", len(devices), err)
	}
	group := doomed | binary.NativeEndian.Uint32(r[:])>>8
	var b rtnl.Batch
	for _, d := range devices {
		b.Begin(unix.RTM_SETLINK, 0, rtnl.LinkHeader(0, 0, 0))
		b.String(unix.IFLA_IFNAME, d)
		b.Uint32(unix.IFLA_GROUP, group)
	}
	failed, err := c.Execute(&b)
	if err != nil {
		return fmt.Errorf("gather %d devices for deletion: %w", len(devices), err)
	}
	var errs []error
	for _, f := range failed {
		if !errors.Is(f.Err, unix.ENODEV) {
			errs = append(errs, fmt.Errorf("delete %s: %w", devices[f.Index], f.Err))
		}
	}
	return errors.Join(append(errs, deleteGroup(c, group))...)
}

// doomed begins the link groups of devices that are being deleted, apart from
// those of VNets.
const doomed = 0x7d000000

// DeleteGroup removes every device of a group in the calling thread's network
// namespace; that there is none is no error.
func DeleteGroup(group uint32) error {
	if group == 0 {
		return errors.New("refusing to delete link group 0, which holds every device that has no group")
	}
	c, err := rtnl.Dial()
	if err != nil {
		return err
	}
	defer c.Close()
	return deleteGroup(c, group)
}

func deleteGroup(c *rtnl.Conn, group uint32) (err error) {
	release, err := rcu.Expedite()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	var b rtnl.Batch
	b.Begin(unix.RTM_DELLINK, 0, rtnl.LinkHeader(0, 0, 0))
	b.Uint32(unix.IFLA_GROUP, group)
	failed, err := c.Execute(&b)
	if err != nil {
		return fmt.Errorf("delete link group %#x: %w", group, err)
	}
	if len(failed) > 0 && !errors.Is(failed[0].Err, unix.ENODEV) {
		return fmt.Errorf("delete link group %#x: %w", group, failed[0].Err)
	}
	return nil
}

// DeleteNameless removes those of the devices that exist and carry no alias.
// The kernel gives a device its alias only after it is made, so one whose maker
// was killed in between has a name that is Trellis's and nothing else. The
// caller knows the names that it was about to make.
func DeleteNameless(devices ...string) error {
	c, err := rtnl.Dial()
	if err != nil {
		return err
	}
	defer c.Close()
	links, err := c.LinksNamed(devices...)
	if err != nil {
		return err
	}
	var nameless []string
	for name, l := range links {
		if l.Alias == "" {
			nameless = append(nameless, name)
		}
	}
	if len(nameless) == 0 {
		return nil
	}
	return Delete(nameless...)
}
