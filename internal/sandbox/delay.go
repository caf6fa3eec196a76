package sandbox

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"trellis/internal/substrate/shaper"
)

// MaxDelay bounds the delay of a path.
const MaxDelay = time.Minute

// delayQueue is how many packets one host's delayed traffic may hold.
const delayQueue = 100_000

// delayRate is the rate of each delayed class, in bit/s: no limit in practice.
const delayRate = 100e9

// delay delays what the hosts of each pair send each other.
//
// Each of the fabric's interfaces has a class for every host whose packets to
// there are delayed, with a netem of its own. A packet belongs to it by its
// source address.
func (u *underlay) delay(pairs []pair, delay time.Duration) error {
	if delay < 0 || delay > MaxDelay {
		return fmt.Errorf("a delay of %v is out of reach; give one of up to %v, or 0 to end it", delay, MaxDelay)
	}
	if delay > 0 {
		netem, err := shaper.Supported()
		if err != nil {
			return err
		}
		if !netem {
			return errors.New("a delay needs the netem qdisc, and this kernel has none; load it (modprobe sch_netem), or use a kernel with CONFIG_NET_SCH_NETEM")
		}
	}
	h, err := u.fabric.netlink()
	if err != nil {
		return err
	}
	defer h.Close()
	delays, err := u.delays(h)
	if err != nil {
		return err
	}
	changed := map[int]bool{}
	for _, p := range pairs {
		for _, way := range []pair{p, {p.b, p.a}} {
			if delays[way] != delay {
				delays[way] = delay
				changed[way.b] = true
			}
		}
	}
	for to := range changed {
		if err := u.setDelays(h, to, delays); err != nil {
			return fmt.Errorf("delay what is sent to %s: %w", u.spec.Hosts[to].Name, err)
		}
	}
	return nil
}

// root is the major number of the classes' qdisc, and delayed that of the first
// host's netem.
const (
	root    = 1
	delayed = 2
)

// class is the class of what a host sends.
func class(from int) uint32 { return netlink.MakeHandle(root, uint16(from+1)) }

// setDelays gives the interface to a host its classes anew.
func (u *underlay) setDelays(h *netlink.Handle, to int, delays map[pair]time.Duration) error {
	l, err := h.LinkByName(u.spec.Hosts[to].Name)
	if err != nil {
		return err
	}
	index := l.Attrs().Index
	top := netlink.NewHtb(netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(root, 0), Parent: netlink.HANDLE_ROOT})
	if err := h.QdiscDel(top); err != nil && !errors.Is(err, syscall.ENOENT) && !errors.Is(err, syscall.EINVAL) {
		return err
	}
	begun := false
	for from := range u.spec.Hosts {
		d := delays[pair{from, to}]
		if d <= 0 {
			continue
		}
		if !begun {
			begun = true
			if err := h.QdiscAdd(top); err != nil {
				return err
			}
		}
		if err := h.ClassAdd(netlink.NewHtbClass(
			netlink.ClassAttrs{LinkIndex: index, Parent: netlink.MakeHandle(root, 0), Handle: class(from)},
			netlink.HtbClassAttrs{Rate: delayRate, Ceil: delayRate, Buffer: 1 << 20, Cbuffer: 1 << 20, Quantum: 1 << 16},
		)); err != nil {
			return err
		}
		if err := h.QdiscAdd(netlink.NewNetem(
			netlink.QdiscAttrs{LinkIndex: index, Parent: class(from), Handle: netlink.MakeHandle(uint16(delayed+from), 0)},
			netlink.NetemQdiscAttrs{Latency: uint32(d.Microseconds()), Limit: delayQueue},
		)); err != nil {
			return err
		}
		if err := u.classify(h, index, from); err != nil {
			return err
		}
	}
	return nil
}

// classify puts what a host sends into its class.
func (u *underlay) classify(h *netlink.Handle, device, from int) error {
	for _, a := range u.spec.Underlay.link(from).host {
		var keys []netlink.TcU32Key
		at := int32(12) // of the source in an IPv4 header; in an IPv6 one 8
		proto := uint16(unix.ETH_P_IP)
		if a.Is6() {
			at, proto = 8, unix.ETH_P_IPV6
		}
		for b := a.AsSlice(); len(b) > 0; b = b[4:] {
			keys = append(keys, netlink.TcU32Key{Mask: 0xffffffff, Val: binary.BigEndian.Uint32(b), Off: at})
			at += 4
		}
		if err := h.FilterAdd(&netlink.U32{
			FilterAttrs: netlink.FilterAttrs{
				LinkIndex: device, Parent: netlink.MakeHandle(root, 0), Protocol: proto,
				// A priority has one protocol.
				Priority: map[bool]uint16{true: 1, false: 2}[a.Is4()],
			},
			ClassId: class(from),
			Sel:     &netlink.TcU32Sel{Flags: netlink.TC_U32_TERMINAL, Nkeys: uint8(len(keys)), Keys: keys},
		}); err != nil {
			return err
		}
	}
	return nil
}

// delays reads the delays that are set, by who sends to whom.
func (u *underlay) delays(h *netlink.Handle) (map[pair]time.Duration, error) {
	all := map[pair]time.Duration{}
	for to, host := range u.spec.Hosts {
		l, err := h.LinkByName(host.Name)
		if err != nil {
			return nil, fmt.Errorf("interface %s of the fabric: %w", host.Name, err)
		}
		qdiscs, err := h.QdiscList(l)
		if err != nil {
			return nil, fmt.Errorf("read the delays towards %s: %w", host.Name, err)
		}
		for _, q := range qdiscs {
			netem, ok := q.(*netlink.Netem)
			if !ok {
				continue
			}
			major, minor := netlink.MajorMinor(netem.Parent)
			if from := int(minor) - 1; major == root && from >= 0 && from < len(u.spec.Hosts) {
				all[pair{from, to}] = ticks(netem.Latency)
			}
		}
	}
	return all, nil
}

// ticks gives a time in the unit of the kernel's packet schedulers, as netlink
// reads it back.
func ticks(n uint32) time.Duration {
	return time.Duration(float64(n)/netlink.TickInUsec()*float64(time.Microsecond) + 0.5).Round(time.Microsecond)
}
