package dataplane

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"trellis/internal/substrate/kernel"
)

const (
	// uplinkDir holds the links of uplinks, in ownDir.
	uplinkDir = "uplink"
	// maxAddrs is MAX_ADDRESSES of bpf/uplink.bpf.c.
	maxAddrs = 16
)

// Uplink is an interface of the root context by which EGRE leaves and arrives.
type Uplink struct {
	Name  string // of the interface
	Index int
	// Addrs are the addresses that this machine's tunnels end at; at least one, at
	// most 16. GRE to others passes to the host's stack.
	Addrs []netip.Addr
	XDP   XDPMode
}

// UplinkState is an uplink as it is.
type UplinkState struct {
	Name  string
	Index int // 0: the interface is gone; DetachUplink forgets it
	Mode  XDPMode
	Addrs []netip.Addr // sorted
	// Transmits tells that the driver sends what the fast path forwards. Else the nodes' own stacks
	// forward what leaves by the uplink.
	Transmits bool
	// Drops are of what came in and could not be charged to a port, in packets;
	// reasons with none are left out.
	Drops map[DropReason]uint64
}

// AttachUplink puts the program that receives EGRE on an uplink, and tells which
// XDP mode it got. Attaching again changes what differs, addresses in place,
// and mends what is missing. An interface that has somebody else's XDP program
// is refused.
//
// The checksums of what a veth carries are never filled in, since it has no
// wire; EGRE's receiver would miss them. So an uplink that is a veth, as in an
// emulated underlay, has its transmit checksum offload turned off.
//
// In generic mode the program runs behind the kernel's aggregation of what is
// received (GRO), which makes one packet of many of a tunnel, longer than any
// link. So that is turned off there, and below, if the interface is a VLAN's or a
// bond's.
func (d *Dataplane) AttachUplink(u Uplink) (XDPMode, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	mode, err := d.attachUplink(u)
	if err != nil {
		return 0, fmt.Errorf("attach the uplink %s: %w", u.Name, err)
	}
	return mode, nil
}

func (d *Dataplane) attachUplink(u Uplink) (XDPMode, error) {
	path, err := d.uplinkPath(u.Name)
	if err != nil {
		return 0, err
	}
	if u.XDP > Generic {
		return 0, fmt.Errorf("there is no %v", u.XDP)
	}
	addrs, err := u.addresses()
	if err != nil {
		return 0, err
	}
	i, err := net.InterfaceByIndex(u.Index)
	if err != nil {
		return 0, fmt.Errorf("find the interface with index %d: %w", u.Index, err)
	}
	if err := disableTxChecksum(i.Name); err != nil {
		return 0, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return 0, err
	}
	entry, ok := d.uplinks.get(uint32(u.Index))
	if !ok {
		if entry.Slot, err = d.newSlot(u.Index); err != nil {
			return 0, err
		}
		if err := d.setUplink(u.Index, entry); err != nil { // so that forgetUplinks finds it
			return 0, errors.Join(err, d.freeSlot(entry.Slot))
		}
	}
	offload, err := needsEncapOffload(i.Name)
	if err != nil {
		return 0, err
	}
	entry.Flags &^= uplinkProgsUplinkFlagUPLINK_ENCAP_OFFLOAD
	if offload {
		entry.Flags |= uplinkProgsUplinkFlagUPLINK_ENCAP_OFFLOAD
	}
	entry.Count = uint32(len(addrs))
	for i := range entry.Address {
		entry.Address[i].In6U.U6Addr8 = [16]byte{}
		if i < len(addrs) {
			entry.Address[i].In6U.U6Addr8 = addrs[i].As16()
		}
	}
	// The mode is noted before the program is there, so that a crash leaves no
	// program whose mode nobody knows.
	release, err := kernel.Release()
	if err != nil {
		return 0, err
	}
	mode, err := d.ensureUplink(path, u, entry, redirectable(release, i.MTU))
	if err == nil {
		err = d.askUplink(i, mode)
	}
	if err == nil {
		err = d.syncUplinkPaths(u.Index)
	}
	return mode, errors.Join(err, d.forgetUplinks())
}

// askUplink notes whether an uplink sends what XDP redirects to it. Some drivers do only once a
// program is attached.
func (d *Dataplane) askUplink(i *net.Interface, mode XDPMode) error {
	can, err := transmits(i.Index, i.MTU, i.Name, mode)
	if err != nil {
		return err
	}
	entry, _ := d.uplinks.get(uint32(i.Index))
	entry.Flags &^= uplinkProgsUplinkFlagUPLINK_NO_TRANSMIT
	if !can {
		entry.Flags |= uplinkProgsUplinkFlagUPLINK_NO_TRANSMIT
	}
	return d.setUplink(i.Index, entry)
}

// uplinkPath gives the place of an uplink's pin. Pins have no dots, and
// interfaces no colons.
func (d *Dataplane) uplinkPath(name string) (string, error) {
	if name == "" || len(name) >= unix.IFNAMSIZ || strings.ContainsAny(name, "/: \t\n") {
		return "", fmt.Errorf("%q is no interface's name", name)
	}
	return filepath.Join(d.dir, ownDir, uplinkDir, strings.ReplaceAll(name, ".", ":")), nil
}

// addresses gives the uplink's addresses, sorted.
func (u Uplink) addresses() ([]netip.Addr, error) {
	if len(u.Addrs) == 0 {
		return nil, errors.New("it has no address for tunnels to end at")
	}
	if len(u.Addrs) > maxAddrs {
		return nil, fmt.Errorf("it has %d addresses for tunnels to end at; at most %d are possible", len(u.Addrs), maxAddrs)
	}
	var addrs []netip.Addr
	for _, a := range u.Addrs {
		if a = a.Unmap().WithZone(""); !a.IsValid() || a.IsUnspecified() || a.IsMulticast() {
			return nil, fmt.Errorf("tunnels cannot end at the address %v", a)
		}
		addrs = append(addrs, a)
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs), nil
}

// ensureUplink makes the anchor at path be one at the uplink, in a mode that will
// do, and leaves it alone if it is. notNative is why native mode will not.
func (d *Dataplane) ensureUplink(path string, u Uplink, entry uplinkProgsUplink, notNative error) (XDPMode, error) {
	program := d.programs["uplink_in"]
	old, err := openAnchor(path)
	if err != nil {
		return 0, err
	}
	had := XDPMode(entry.Mode)
	if old != nil {
		defer old.Close()
		if old.index == u.Index && old.program != 0 && had != Auto && (u.XDP == Auto || u.XDP == had) && (had != Native || notNative == nil) {
			if err := d.setUplink(u.Index, entry); err != nil {
				return 0, err
			}
			if had == Generic {
				if err := disableGRO(u.Index); err != nil {
					return 0, err
				}
			}
			if old.program == d.ids["uplink_in"] {
				return had, nil
			}
			return had, old.update(program)
		}
		if err := old.remove(); err != nil { // of an earlier interface, or in another mode
			return 0, err
		}
	}
	wanted := []XDPMode{u.XDP}
	if u.XDP == Auto {
		wanted = []XDPMode{Native, Generic}
	}
	var refused error
	for _, mode := range wanted {
		entry.Mode = uplinkProgsUplinkMode(mode)
		if err := d.setUplink(u.Index, entry); err != nil {
			return 0, err
		}
		if mode == Generic {
			if err := disableGRO(u.Index); err != nil {
				return 0, err
			}
		}
		if mode == Native && notNative != nil {
			err = notNative
		} else if err = setXDP(path, u.Index, program, mode); err == nil {
			return mode, nil
		}
		if errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EEXIST) {
			return 0, fmt.Errorf("it runs another XDP program; take that off, or use another interface: %w", err)
		}
		if refused == nil {
			refused = fmt.Errorf("%v XDP: %w", mode, err)
		} else {
			refused = fmt.Errorf("%w; %v XDP: %w", refused, mode, err)
		}
	}
	if u.XDP == Native {
		refused = fmt.Errorf("%w; use an interface whose driver has native XDP, or allow generic mode (xdp: auto)", refused)
		if old != nil && old.index == u.Index && had == Generic { // go on as before
			entry.Mode = uplinkProgsUplinkMode(Generic)
			refused = errors.Join(refused, d.setUplink(u.Index, entry), setXDP(path, u.Index, program, Generic))
		}
	}
	return 0, refused
}

// pageFrame is the longest MTU whose frames a driver surely receives in one page,
// with room before and behind them.
const pageFrame = 3400

// redirectable tells why a kernel cannot redirect all frames of an uplink: until
// Linux 6.3 (commit b9d460c92455) those of several pages were lost, uncounted.
func redirectable(release string, mtu int) error {
	if v, ok := kernel.Parse(release); ok && (v.Major < 6 || v.Major == 6 && v.Minor < 3) && mtu > pageFrame {
		return fmt.Errorf("its MTU is %d, and Linux %v loses frames of more than a page; set it to %d or less, or use Linux 6.3", mtu, v, pageFrame)
	}
	return nil
}

// DetachUplink takes the program off an uplink and forgets it. That there is no
// such uplink is no error.
func (d *Dataplane) DetachUplink(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	path, err := d.uplinkPath(name)
	if err == nil {
		err = detach(path)
	}
	if err == nil {
		err = d.forgetUplinks()
	}
	if err != nil {
		return fmt.Errorf("detach the uplink %s: %w", name, err)
	}
	return nil
}

// Uplinks gives the uplinks that are attached, sorted by name.
func (d *Dataplane) Uplinks() ([]UplinkState, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	names, err := d.uplinkNames()
	if err != nil {
		return nil, err
	}
	var found []UplinkState
	for _, name := range names {
		u, err := d.uplinkState(name)
		if err != nil {
			return nil, fmt.Errorf("read the uplink %s: %w", name, err)
		}
		if u != nil {
			found = append(found, *u)
		}
	}
	slices.SortFunc(found, func(a, b UplinkState) int { return cmp.Compare(a.Name, b.Name) })
	return found, nil
}

func (d *Dataplane) uplinkNames() ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(d.dir, ownDir, uplinkDir))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("list the uplinks: %w", err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, strings.ReplaceAll(e.Name(), ":", "."))
	}
	return names, nil
}

func (d *Dataplane) uplinkState(name string) (*UplinkState, error) {
	path, err := d.uplinkPath(name)
	if err != nil {
		return nil, err
	}
	a, err := openAnchor(path)
	if err != nil || a == nil {
		return nil, err
	}
	defer a.Close()
	u := &UplinkState{Name: name, Index: a.index}
	if a.index == 0 {
		return u, nil
	}
	entry, ok := d.uplinks.get(uint32(a.index))
	if !ok {
		return u, nil
	}
	u.Mode, u.Transmits = XDPMode(entry.Mode), entry.Flags&uplinkProgsUplinkFlagUPLINK_NO_TRANSMIT == 0
	for _, a := range entry.Address[:min(entry.Count, maxAddrs)] {
		u.Addrs = append(u.Addrs, netip.AddrFrom16(a.In6U.U6Addr8).Unmap())
	}
	u.Drops, err = d.dropped(entry.Slot)
	return u, err
}

// setUplink enters an uplink and its addresses.
func (d *Dataplane) setUplink(index int, u uplinkProgsUplink) error {
	if err := d.uplinks.put(uint32(index), u); err != nil {
		return fmt.Errorf("enter the uplink %d: %w", index, err)
	}
	for _, a := range u.Address[:u.Count] {
		if err := d.maps["tunnel_addrs"].Put(a, uint32(1)); err != nil {
			return fmt.Errorf("enter an address of the uplink %d: %w", index, err)
		}
	}
	return nil
}

// forgetUplinks removes the entries of uplinks that are attached no more, and
// the addresses of none.
func (d *Dataplane) forgetUplinks() error {
	names, err := d.uplinkNames()
	if err != nil {
		return err
	}
	alive := map[uint32]bool{}
	for _, name := range names {
		path, err := d.uplinkPath(name)
		if err != nil {
			return err
		}
		a, err := openAnchor(path)
		if err != nil {
			return err
		}
		if a == nil {
			continue
		}
		alive[uint32(a.index)] = a.index != 0
		if err := a.Close(); err != nil {
			return err
		}
	}
	var gone []uint32
	addrs := map[[16]byte]bool{}
	for index, u := range d.uplinks.rows {
		if !alive[index] {
			gone = append(gone, index)
			continue
		}
		d.slots.reserve(u.Slot)
		for _, a := range u.Address[:min(u.Count, maxAddrs)] {
			addrs[a.In6U.U6Addr8] = true
		}
	}
	errs := []error{d.pruneAddrs(addrs)}
	for _, index := range gone {
		errs = append(errs, d.forgetUplink(index))
	}
	return errors.Join(errs...)
}

// pruneAddrs removes the addresses of no uplink.
func (d *Dataplane) pruneAddrs(keep map[[16]byte]bool) error {
	addrs, err := openTable[[16]byte, uint32](d.maps["tunnel_addrs"], "tunnel_addrs")
	if err != nil {
		return err
	}
	return addrs.prune(func(a [16]byte) bool { return keep[a] })
}

func (d *Dataplane) forgetUplink(index uint32) error {
	u, ok := d.uplinks.get(index)
	if !ok {
		return nil
	}
	if err := d.uplinks.remove(index); err != nil {
		return err
	}
	if err := d.syncUplinkPaths(int(index)); err != nil { // none leads to the slot any more
		return err
	}
	return d.freeSlot(u.Slot)
}

// syncUplinkPaths brings the egress entries of the paths by an uplink in line with
// its entry.
func (d *Dataplane) syncUplinkPaths(index int) error {
	for port, p := range d.ports.rows {
		if e, ok := d.egresses.get(p.Egress); !ok || !Mode(p.Mode).crosses() || int(e.Uplink) != index {
			continue
		}
		if err := d.syncEgress(port); err != nil {
			return fmt.Errorf("update the paths by uplink %d: %w", index, err)
		}
	}
	return nil
}
