package dataplane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/safchain/ethtool"
	"golang.org/x/sys/unix"
)

// A frame that XDP redirects to a device whose driver cannot send it (it has no ndo_xdp_xmit) is
// dropped when the devmap is flushed, after the program, which has counted it as sent
// (dev_map_enqueue, kernel/bpf/devmap.c). So the device is asked beforehand.

// What linux/netdev.h and linux/genetlink.h say.
const (
	netdevFamily      = "netdev" // Linux 6.3, commit d3d854fd6a1d
	netdevGet         = 1        // NETDEV_CMD_DEV_GET
	netdevIndex       = 1        // NETDEV_A_DEV_IFINDEX
	netdevXDPFeatures = 3        // NETDEV_A_DEV_XDP_FEATURES
	xdpTransmits      = 1 << 2   // NETDEV_XDP_ACT_NDO_XMIT
	xdpTransmitsLong  = 1 << 6   // NETDEV_XDP_ACT_NDO_XMIT_SG: frames of several buffers

	genlControl        = 16 // GENL_ID_CTRL
	controlGetFamily   = 3
	controlFamilyID    = 1
	controlFamilyName  = 2
	genlVersion        = 1
	genlHeader         = 4
	netlinkAnswerBytes = 32 << 10
)

// transmitless are the drivers that have native XDP and no ndo_xdp_xmit, or had none in Linux
// 6.2, which cannot be asked. Older kernels have no fast path.
var transmitless = []string{"gve", "ixgbevf", "liquidio", "mlx4_en", "netdevsim", "nfp", "nicvf", "vmxnet3"}

// transmits tells whether a device sends the frames that XDP redirects to it. mode is that of the
// program that it runs.
//
// A veth does if its far end has a program or GRO, which changes without a word to this end;
// whoever makes an underlay of veths sees to it.
func transmits(index, mtu int, name string, mode XDPMode) (bool, error) {
	driver, err := driverOf(name)
	if err != nil {
		return false, err
	}
	if driver == "veth" {
		return true, nil
	}
	features, err := xdpFeatures(index)
	switch {
	case errors.Is(err, unix.ENOENT): // no such family
		return mode == Native && !slices.Contains(transmitless, driver), nil
	case err != nil:
		return false, fmt.Errorf("ask what XDP of %s can: %w", name, err)
	}
	return features&xdpTransmits != 0 && (mtu <= pageFrame || features&xdpTransmitsLong != 0), nil
}

// driverOf names the driver of a device; "": it does not tell.
func driverOf(name string) (string, error) {
	e, err := ethtool.NewEthtool()
	if err != nil {
		return "", fmt.Errorf("open a socket: %w", err)
	}
	defer e.Close()
	driver, err := e.DriverName(name)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("ask for the driver of %s: %w", name, err)
	}
	return driver, nil
}

// xdpFeatures asks the kernel what XDP of a device can (NETDEV_XDP_ACT_*).
func xdpFeatures(index int) (uint64, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_GENERIC)
	if err != nil {
		return 0, os.NewSyscallError("open a netlink socket", err)
	}
	defer unix.Close(fd)
	family, err := askGeneric(fd, genlControl, controlGetFamily, controlFamilyName, append([]byte(netdevFamily), 0), controlFamilyID)
	if err != nil {
		return 0, err
	}
	if len(family) < 2 {
		return 0, errors.New("the kernel's answer has no number of a family")
	}
	features, err := askGeneric(fd, binary.NativeEndian.Uint16(family), netdevGet, netdevIndex, binary.NativeEndian.AppendUint32(nil, uint32(index)), netdevXDPFeatures)
	if err != nil {
		return 0, err
	}
	if len(features) < 8 {
		return 0, errors.New("the kernel's answer has no features")
	}
	return binary.NativeEndian.Uint64(features), nil
}

// askGeneric sends a request with one attribute to a generic netlink family, and gives the
// wanted attribute of the answer; nil: it has none.
func askGeneric(fd int, family uint16, command byte, attribute uint16, value []byte, wanted uint16) ([]byte, error) {
	b := make([]byte, unix.SizeofNlMsghdr+genlHeader, 128)
	b[unix.SizeofNlMsghdr], b[unix.SizeofNlMsghdr+1] = command, genlVersion
	b = binary.NativeEndian.AppendUint16(b, uint16(unix.SizeofNlAttr+len(value)))
	b = binary.NativeEndian.AppendUint16(b, attribute)
	b = append(b, value...)
	for len(b)%unix.NLMSG_ALIGNTO != 0 {
		b = append(b, 0)
	}
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	binary.NativeEndian.PutUint16(b[4:], family)
	binary.NativeEndian.PutUint16(b[6:], unix.NLM_F_REQUEST)
	if err := unix.Sendto(fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, os.NewSyscallError("sendto", err)
	}
	answer := make([]byte, netlinkAnswerBytes)
	n, _, err := unix.Recvfrom(fd, answer, 0) // it is there when sendto returns
	if err != nil {
		return nil, os.NewSyscallError("recvfrom", err)
	}
	if n < unix.SizeofNlMsghdr+genlHeader {
		return nil, fmt.Errorf("the kernel's answer has %d bytes", n)
	}
	if binary.NativeEndian.Uint16(answer[4:]) == unix.NLMSG_ERROR {
		return nil, unix.Errno(-int32(binary.NativeEndian.Uint32(answer[unix.SizeofNlMsghdr:])))
	}
	for b := answer[unix.SizeofNlMsghdr+genlHeader : n]; len(b) >= unix.SizeofNlAttr; {
		size := int(binary.NativeEndian.Uint16(b))
		if size < unix.SizeofNlAttr || size > len(b) {
			break
		}
		if binary.NativeEndian.Uint16(b[2:])&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER) == wanted {
			return b[unix.SizeofNlAttr:size], nil
		}
		b = b[min(len(b), (size+unix.NLA_ALIGNTO-1)&^(unix.NLA_ALIGNTO-1)):]
	}
	return nil, nil
}
