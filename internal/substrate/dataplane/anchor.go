package dataplane

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// anchor is what keeps a program at a hook of a device, as its pin tells: a
// bpf_link (tcx or XDP), or on kernels without tcx a filter (clsact).
type anchor struct {
	path    string
	index   int // of the device, in its namespace; 0: the device is gone, and the anchor without effect
	attach  ebpf.AttachType
	program ebpf.ProgramID // 0: there is none at the hook any more
	link    link.Link      // nil: a filter
}

// openAnchor finds the anchor that a pin stands for; nil if there is no such pin.
func openAnchor(path string) (*anchor, error) {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("look at a pin: %w", err)
	case info.Mode()&fs.ModeSymlink != 0:
		return openFilter(path)
	}
	return openLink(path)
}

// set puts a program at the hook of a device and pins what keeps it there. The
// program runs from here on, or after an error not at all.
func (d *Dataplane) set(path string, ifindex int, attach ebpf.AttachType, p *ebpf.Program) error {
	if d.filters {
		return setFilter(path, ifindex, attach, p)
	}
	return setLink(path, ifindex, attach, p)
}

// update replaces the anchor's program in one step: every frame meets the old
// one or the new one.
func (a *anchor) update(p *ebpf.Program) error {
	if a.link != nil {
		return a.link.Update(p)
	}
	return putFilter(a.index, a.attach, p)
}

// remove takes the program from its hook, and the pin away. A link would go with
// its pin, but a grace period later, and keep the hook from others until then.
func (a *anchor) remove() error {
	if a.index != 0 {
		var err error
		if a.link == nil {
			err = deleteFilter(a.index, a.attach)
		} else {
			err = a.link.Detach()
		}
		if err != nil {
			return fmt.Errorf("take the program of %s off: %w", a.path, err)
		}
	}
	return unpin(a.path)
}

// Close lets go of the descriptor.
func (a *anchor) Close() error {
	if a.link == nil {
		return nil
	}
	return a.link.Close()
}

// detach removes the anchor at path; that there is none is no error.
func detach(path string) error {
	a, err := openAnchor(path)
	if err != nil || a == nil {
		return err
	}
	return errors.Join(a.remove(), a.Close())
}

// hookOf gives the hook that a pin is of, by its name.
func hookOf(path string) ebpf.AttachType {
	if strings.HasSuffix(path, outSuffix) {
		return ebpf.AttachTCXEgress
	}
	return ebpf.AttachTCXIngress
}
