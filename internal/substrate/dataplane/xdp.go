package dataplane

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// XDPMode is where a device runs an XDP program.
type XDPMode uint8

// Modes of XDP.
const (
	Auto    XDPMode = iota // native if the driver can, else generic
	Native                 // in the driver, on its own frames
	Generic                // behind the driver, on skbs, at several times the cost
)

func (m XDPMode) String() string {
	switch m {
	case Auto:
		return "auto"
	case Native:
		return "native"
	case Generic:
		return "generic"
	}
	return fmt.Sprintf("XDP mode %d", uint8(m))
}

// attachXDP attaches an XDP program to a device of the calling thread's network
// namespace by a link.
func attachXDP(ifindex int, p *ebpf.Program, mode XDPMode) (link.Link, error) {
	flags := link.XDPDriverMode
	if mode == Generic {
		flags = link.XDPGenericMode
	}
	l, err := link.AttachXDP(link.XDPOptions{Program: p, Interface: ifindex, Flags: flags})
	if errors.Is(err, unix.EOPNOTSUPP) && mode == Native {
		err = fmt.Errorf("its driver has no native XDP (%w)", err)
	}
	return l, err
}

// pinLink pins a link at path. The pin holds it from here on; without it, it goes.
func pinLink(l link.Link, path string) error { return errors.Join(l.Pin(path), l.Close()) }

// setXDP attaches an XDP program and pins its link.
func setXDP(path string, ifindex int, p *ebpf.Program, mode XDPMode) error {
	l, err := attachXDP(ifindex, p, mode)
	if err != nil {
		return err
	}
	return pinLink(l, path)
}
