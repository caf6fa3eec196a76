package plan

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"strings"
)

// DeviceKind is the first letters of a device name in the root context.
type DeviceKind string

// Kinds of devices that Trellis makes in the root context.
const (
	PortDevice   DeviceKind = "tr" // outer end of a virtual interface
	BridgeDevice DeviceKind = "tb" // bridge of a LAN
	TunnelDevice DeviceKind = "tx" // outer end of what stands on a LAN's bridge for another machine
)

// groupSpace is where Trellis takes link groups from, away from the small
// numbers that people use by hand.
const groupSpace = 0x7e000000

var deviceEncoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// DeviceName gives the name of a device in the root context: it depends on
// nothing but its owner, so it is the same after every restart, and 65 bits of
// SHA-256 keep owners apart within the 15 bytes that the kernel allows.
func DeviceName(kind DeviceKind, instance, vnet, object string) string {
	sum := sha256.Sum256([]byte(strings.Join([]string{instance, vnet, object}, "\x00")))
	return (string(kind) + deviceEncoding.EncodeToString(sum[:]))[:maxDeviceName]
}

// Alias gives the IFLA_IFALIAS of a device: its owner in words.
// Object is "node:interface" for ports, "@link" for bridges and "@link>machine"
// for what stands on a bridge for another machine.
func Alias(instance, vnet, object string) string {
	return "trellis:" + instance + ":" + vnet + "/" + object
}

// Group gives the link group of a VNet's devices. Two VNets may meet in one
// group (24 bits of hash), so who deletes by group checks the aliases first.
func Group(instance, vnet string) uint32 {
	sum := sha256.Sum256([]byte(instance + "\x00" + vnet))
	return groupSpace | binary.BigEndian.Uint32(sum[:])>>8
}
