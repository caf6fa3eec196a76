// Package bridge makes the Linux bridges that carry LANs.
package bridge

import "errors"

// Bridge describes the bridge of one LAN on one substrate node.
type Bridge struct {
	Name  string // the device, at most 15 bytes
	Alias string // trellis:<instance>:<vnet>/@<link>
	Group uint32
	MTU   int
}

// Ensure makes the bridge, or sets it right. It is left up: see dataplane for
// the program that must be attached to it first. (It is left as it was if it exists.)
func Ensure(b Bridge) error { return errors.ErrUnsupported }

// SetPort enslaves device to bridge; an empty bridge frees it.
func SetPort(bridge, device string) error { return errors.ErrUnsupported }

// SetPorts is SetPort for many: device to bridge.
func SetPorts(masters map[string]string) error { return errors.ErrUnsupported }
