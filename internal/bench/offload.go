package bench

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ethtoolValue is struct ethtool_value of linux/ethtool.h.
type ethtoolValue struct{ cmd, data uint32 }

// ifreqPointer is struct ifreq of linux/if.h, with ifr_data.
type ifreqPointer struct {
	name [unix.IFNAMSIZ]byte
	data unsafe.Pointer
	_    [16]byte // the rest of the union, which is the larger on 64 bits
}

// SetChecksumOffload sets or clears the transmit checksum offload of a device
// of the calling thread's namespace. Without it the kernel takes segmentation
// offload away, too: there is no segment without a checksum (netdev_fix_features
// in net/core/dev.c).
func SetChecksumOffload(device string, on bool) error {
	if err := setFeature(device, unix.ETHTOOL_STXCSUM, on); err != nil {
		return fmt.Errorf("set the transmit checksum offload of %s: %w", device, err)
	}
	return nil
}

// SetReceiveOffload sets or clears generic receive offload (GRO) of a device of
// the calling thread's namespace. With it a veth receives as a network card does,
// by NAPI, and accepts frames that XDP sends to its peer (veth_xdp_xmit in
// drivers/net/veth.c).
func SetReceiveOffload(device string, on bool) error {
	if err := setFeature(device, unix.ETHTOOL_SGRO, on); err != nil {
		return fmt.Errorf("set the receive offload of %s: %w", device, err)
	}
	return nil
}

func setFeature(device string, cmd uint32, on bool) error {
	value := ethtoolValue{cmd: cmd}
	if on {
		value.data = 1
	}
	return ethtool(device, &value)
}

// SegmentationOffload reports whether TCP segmentation offload of a device of
// the calling thread's namespace is on.
func SegmentationOffload(device string) (bool, error) {
	value := ethtoolValue{cmd: unix.ETHTOOL_GTSO}
	if err := ethtool(device, &value); err != nil {
		return false, fmt.Errorf("read the segmentation offload of %s: %w", device, err)
	}
	return value.data != 0, nil
}

func ethtool(device string, value *ethtoolValue) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(value)
	req := ifreqPointer{data: unsafe.Pointer(value)}
	copy(req.name[:unix.IFNAMSIZ-1], device)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&req))); errno != 0 {
		return errno
	}
	return nil
}
