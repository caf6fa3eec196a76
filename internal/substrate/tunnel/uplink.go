package tunnel

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// Uplink is an interface of the root context by which EGRE leaves and arrives.
type Uplink struct {
	Index int
	// Addrs are the addresses that this machine's tunnels end at. GRE to others
	// passes to the host's stack.
	Addrs []netip.Addr
}

// AttachUplink puts uplink_in on an uplink, in its driver's own XDP; an interface
// that has none is refused. So is one that has a program already, which stays.
//
// The checksums of what a veth carries are never filled in, since it has no
// wire; EGRE's receiver would miss them. So an uplink that is a veth, as in an
// emulated underlay, has its transmit checksum offload turned off.
func (t *Tunnel) AttachUplink(u Uplink) error {
	if err := t.attachUplink(u); err != nil {
		return fmt.Errorf("attach the uplink %d: %w", u.Index, err)
	}
	return nil
}

func (t *Tunnel) attachUplink(u Uplink) error {
	if len(u.Addrs) == 0 {
		return errors.New("it has no address for tunnels to end at")
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.uplinks[u.Index] != nil {
		return errors.New("it is attached already; detach it first")
	}
	if err := wholeChecksums(u.Index); err != nil {
		return err
	}
	if err := t.stack.Devices.Put(uint32(u.Index), uint32(u.Index)); err != nil {
		return fmt.Errorf("enter the device: %w", err)
	}
	for _, a := range u.Addrs {
		if err := t.stack.Locals.Put(a.As16(), uint32(1)); err != nil {
			return fmt.Errorf("enter the address %v: %w", a, err)
		}
	}
	l, err := link.AttachXDP(link.XDPOptions{Program: t.uplink.UplinkIn, Interface: u.Index, Flags: link.XDPDriverMode})
	if errors.Is(err, ebpf.ErrNotSupported) {
		return fmt.Errorf("its driver has no native XDP; use an interface whose driver has it: %w", err)
	}
	if err != nil {
		return err
	}
	t.uplinks[u.Index] = l
	return nil
}

// wholeChecksums has the kernel fill in checksums before a veth.
func wholeChecksums(index int) error {
	i, err := net.InterfaceByIndex(index)
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("open a socket", err)
	}
	defer unix.Close(fd)
	info, err := unix.IoctlGetEthtoolDrvinfo(fd, i.Name)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil // no driver of that kind
	}
	if err != nil {
		return fmt.Errorf("ask for the driver of %s: %w", i.Name, err)
	}
	if unix.ByteSliceToString(info.Driver[:]) != "veth" {
		return nil
	}
	value := struct{ cmd, data uint32 }{cmd: unix.ETHTOOL_STXCSUM}
	request := struct { // struct ifreq
		name  [unix.IFNAMSIZ]byte
		value unsafe.Pointer
		_     [16]byte
	}{value: unsafe.Pointer(&value)}
	copy(request.name[:], i.Name)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request))); errno != 0 {
		return fmt.Errorf("turn transmit checksum offload of %s off: %w", i.Name, errno)
	}
	return nil
}
