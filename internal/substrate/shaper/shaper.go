// Package shaper sets the rate, delay and loss of what leaves a device of the
// root context, by its root qdisc.
package shaper

import (
	"errors"

	"trellis/internal/vnet"
)

// Queue is the root qdisc of a device, as the kernel has it.
type Queue struct {
	Shape   vnet.Shape
	Packets uint64 // sent
	Bytes   uint64 // sent
	Drops   uint64 // by the queue's limit, or by the loss asked for
	Backlog uint32 // bytes waiting
}

// Supported reports whether this kernel has netem (delay, jitter, loss).
func Supported() (netem bool, err error) { return false, errors.ErrUnsupported }

// Set shapes what leaves device; the zero shape removes the qdisc.
func Set(device string, s vnet.Shape) error { return errors.ErrUnsupported }

// SetAll is Set for many devices at once.
func SetAll(shapes map[string]vnet.Shape) error { return errors.ErrUnsupported }

// Read gives the shaped devices of the network namespace by interface index.
func Read() (map[int]Queue, error) { return nil, errors.ErrUnsupported }

// Same reports whether the kernel would hold a and b alike.
func Same(a, b vnet.Shape) bool { return a == b }
