package dataplane

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"github.com/safchain/ethtool"
	"golang.org/x/sys/unix"

	"trellis/internal/substrate/rtnl"
)

// disableTxChecksum has the kernel fill in checksums before a veth.
func disableTxChecksum(name string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("open a socket", err)
	}
	defer unix.Close(fd)
	info, err := unix.IoctlGetEthtoolDrvinfo(fd, name)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil // no driver of that kind
	}
	if err != nil {
		return fmt.Errorf("ask for the driver of %s: %w", name, err)
	}
	if unix.ByteSliceToString(info.Driver[:]) != "veth" {
		return nil
	}
	if err := turnOff(fd, name, unix.ETHTOOL_STXCSUM); err != nil {
		return fmt.Errorf("turn transmit checksum offload of %s off: %w", name, err)
	}
	return nil
}

// needsEncapOffload tells whether a device must be told of encapsulation: it fills in the
// checksums of TCP and UDP where it finds these itself, and not where the kernel
// says (NETIF_F_HW_CSUM).
func needsEncapOffload(name string) (bool, error) {
	e, err := ethtool.NewEthtool()
	if err != nil {
		return false, fmt.Errorf("open a socket: %w", err)
	}
	defer e.Close()
	features, err := e.Features(name)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read the features of %s: %w", name, err)
	}
	if !features["tx-checksum-ip-generic"] && (features["tx-checksum-ipv4"] || features["tx-checksum-ipv6"]) {
		return true, nil
	}
	return false, nil
}

// disableGRO turns the aggregation of received frames off, for a device and
// those that it receives by: a VLAN's or macvlan's, a bond's or bridge's members.
func disableGRO(index int) error {
	c, err := rtnl.Dial()
	if err != nil {
		return err
	}
	defer c.Close()
	links, err := c.Links()
	if err != nil {
		return fmt.Errorf("read the devices of the root context: %w", err)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("open a socket", err)
	}
	defer unix.Close(fd)
	below := map[int]bool{index: true}
	for grown := true; grown; {
		grown = false
		for i := range links {
			l := &links[i]
			if below[l.Master] && l.Master != 0 && !below[l.Index] {
				below[l.Index], grown = true, true
			}
			if below[l.Index] && l.Peer != 0 && l.Kind != "veth" && !below[l.Peer] {
				below[l.Peer], grown = true, true
			}
		}
	}
	for i := range links {
		if !below[links[i].Index] {
			continue
		}
		err := turnOff(fd, links[i].Name, unix.ETHTOOL_SGRO)
		if err != nil && !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("turn receive offload of %s off: %w", links[i].Name, err)
		}
	}
	return nil
}

// turnOff turns a feature of a device off by the ethtool command that sets it.
func turnOff(fd int, name string, command uint32) error {
	value := struct{ cmd, data uint32 }{cmd: command}
	request := struct { // struct ifreq
		name  [unix.IFNAMSIZ]byte
		value unsafe.Pointer
		_     [16]byte
	}{value: unsafe.Pointer(&value)}
	copy(request.name[:], name)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request))); errno != 0 {
		return errno
	}
	return nil
}
