package dataplane

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"trellis/internal/substrate/rcu"
)

// noDevice is an interface index that no device has.
const noDevice = 1<<31 - 1

// hasTCX tries whether the kernel has tcx (6.6, commit e420bed02507), at a
// device that does not exist.
func hasTCX(p *ebpf.Program) (bool, error) {
	l, err := link.AttachTCX(link.TCXOptions{Interface: noDevice, Program: p, Attach: ebpf.AttachTCXIngress})
	switch {
	case errors.Is(err, ebpf.ErrNotSupported):
		return false, nil
	case err == nil:
		return true, l.Close()
	}
	return true, nil // it looked for the device
}

// openLink opens a pinned link; nil if there is no such pin.
func openLink(path string) (*anchor, error) {
	l, err := link.LoadPinnedLink(path, nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open the pinned link %s: %w", path, err)
	}
	info, err := l.Info()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("read the pinned link %s: %w", path, err), l.Close())
	}
	a := &anchor{path: path, program: info.Program, link: l}
	if tcx := info.TCX(); tcx != nil {
		a.index, a.attach = int(tcx.Ifindex), ebpf.AttachType(tcx.AttachType)
		return a, nil
	}
	if xdp := info.XDP(); xdp != nil {
		a.index, a.attach = int(xdp.Ifindex), ebpf.AttachXDP
		return a, nil
	}
	return nil, errors.Join(fmt.Errorf("the pinned link %s is neither of tcx nor of XDP; remove it", path), l.Close())
}

// setLink attaches a program by a link, and pins it at path.
func setLink(path string, ifindex int, attach ebpf.AttachType, p *ebpf.Program) error {
	release, err := rcu.Expedite()
	if err != nil {
		return err
	}
	l, err := link.AttachTCX(link.TCXOptions{Interface: ifindex, Program: p, Attach: attach})
	if err != nil {
		return errors.Join(err, release())
	}
	// The pin holds the link from here on; without it, it goes with l.
	return errors.Join(l.Pin(path), l.Close(), release())
}
