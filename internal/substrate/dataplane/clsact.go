package dataplane

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"trellis/internal/substrate/rcu"
	"trellis/internal/substrate/rtnl"
)

// Kernels before 6.6 have no tcx. There a program sits in a direct-action filter
// (cls_bpf) of the device's clsact qdisc. A filter belongs to its device: it
// needs nobody who holds it, goes with the device, and cannot be pinned. What
// records it is a symbolic link in the bpffs, in the place of the bpf_link's
// pin; it names the device's interface index, which the kernel does not give
// out twice. Whether the filter is there is asked of the kernel each time.
//
// The record is made before the filter and removed after it, so that after a
// crash no filter is without a record.

const recordFormat = "filter:%d" // interface index

// What linux/pkt_sched.h and linux/pkt_cls.h say.
const (
	clsactHandle  = 0xffff0000
	clsactParent  = 0xfffffff1 // TC_H_CLSACT
	clsactIngress = 0xfffffff2 // TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_INGRESS)
	clsactEgress  = 0xfffffff3

	tcaBPFFD    = 6
	tcaBPFName  = 7
	tcaBPFFlags = 8
	tcaBPFID    = 11

	tcaBPFActDirect = 1 // the program's answer is the verdict

	// Our filter's place at a hook: before all others, for all protocols. One
	// handle, so that to put it again is to replace it, in one step
	// (list_replace_rcu in cls_bpf_change, net/sched/cls_bpf.c).
	filterPriority = 1
	filterHandle   = 1
	filterPlace    = filterPriority<<16 | (unix.ETH_P_ALL&0xff)<<8 | unix.ETH_P_ALL>>8
)

// tcMsg is struct tcmsg.
type tcMsg struct {
	Family uint8
	_      [3]byte
	Index  int32
	Handle uint32
	Parent uint32
	Info   uint32 // priority, and protocol in network order
}

// direction gives the place of a hook's filters.
func direction(attach ebpf.AttachType) uint32 {
	if attach == ebpf.AttachTCXEgress {
		return clsactEgress
	}
	return clsactIngress
}

// openFilter finds the filter that the record at path tells of.
func openFilter(path string) (*anchor, error) {
	record, err := os.Readlink(path)
	if err != nil {
		return nil, fmt.Errorf("read the record of a filter: %w", err)
	}
	a := &anchor{path: path, attach: hookOf(path)}
	if _, err := fmt.Sscanf(record, recordFormat, &a.index); err != nil {
		return nil, fmt.Errorf("%s says %q, which is no record of a filter; remove it: %w", path, record, err)
	}
	c, err := rtnl.Dial()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	found, err := filters(c, a.index, a.attach)
	if err != nil {
		return nil, fmt.Errorf("read the filters of device %d: %w", a.index, err)
	}
	for _, f := range found {
		if f.ours {
			a.program = f.program
			return a, nil
		}
	}
	there, err := exists(c, a.index)
	if !there {
		a.index = 0
	}
	return a, err
}

// filter is one filter of a device.
type filter struct {
	ours    bool
	program ebpf.ProgramID
}

// filters lists the filters at a hook; none if the device is gone or has no
// clsact.
func filters(c *rtnl.Conn, ifindex int, attach ebpf.AttachType) ([]filter, error) {
	var found []filter
	header := tcMsg{Index: int32(ifindex), Parent: direction(attach)}
	err := c.Dump(unix.RTM_GETTFILTER, rtnl.Header(&header), nil,
		func() { found = nil },
		func(body []byte) error {
			if len(body) < 20 {
				return fmt.Errorf("the kernel sent a filter of %d bytes", len(body))
			}
			handle, info := rtnl.Uint32(body[8:]), rtnl.Uint32(body[16:])
			if handle == 0 {
				return nil // the heading of a priority's filters
			}
			f := filter{}
			kind := ""
			for typ, v := range rtnl.Attrs(body[20:]) {
				switch typ {
				case unix.TCA_KIND:
					kind = rtnl.Text(v)
				case unix.TCA_OPTIONS:
					for typ, v := range rtnl.Attrs(v) {
						if typ == tcaBPFID {
							f.program = ebpf.ProgramID(rtnl.Uint32(v))
						}
					}
				}
			}
			f.ours = kind == "bpf" && handle == filterHandle && info == filterPlace && f.program != 0
			found = append(found, f)
			return nil
		})
	// A hook without a qdisc has no filters; some kernels say so by an error.
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOENT) {
		err = nil
	}
	return found, err
}

// exists asks for a device by its index.
func exists(c *rtnl.Conn, ifindex int) (bool, error) {
	var b rtnl.Batch
	b.Begin(unix.RTM_GETLINK, 0, rtnl.LinkHeader(ifindex, 0, 0))
	failed, err := c.Execute(&b)
	if err != nil || len(failed) == 0 {
		return err == nil, err
	}
	if errors.Is(failed[0].Err, unix.ENODEV) {
		return false, nil
	}
	return false, fmt.Errorf("look for device %d: %w", ifindex, failed[0].Err)
}

// setFilter records a filter at path and puts it at the device.
func setFilter(path string, ifindex int, attach ebpf.AttachType, p *ebpf.Program) error {
	if err := os.Symlink(fmt.Sprintf(recordFormat, ifindex), path); err != nil {
		return fmt.Errorf("record a filter: %w", err)
	}
	err := putFilter(ifindex, attach, p)
	if err != nil {
		err = errors.Join(err, unpin(path))
	}
	return err
}

// putFilter puts our filter at a hook, or replaces the one that is there.
func putFilter(ifindex int, attach ebpf.AttachType, p *ebpf.Program) error {
	info, err := p.Info()
	if err != nil {
		return fmt.Errorf("read a program: %w", err)
	}
	release, err := rcu.Expedite()
	if err != nil {
		return err
	}
	var b rtnl.Batch
	qdisc := tcMsg{Index: int32(ifindex), Handle: clsactHandle, Parent: clsactParent}
	b.Begin(unix.RTM_NEWQDISC, unix.NLM_F_CREATE|unix.NLM_F_EXCL, rtnl.Header(&qdisc))
	b.String(unix.TCA_KIND, "clsact")
	f := tcMsg{Index: int32(ifindex), Handle: filterHandle, Parent: direction(attach), Info: filterPlace}
	b.Begin(unix.RTM_NEWTFILTER, unix.NLM_F_CREATE, rtnl.Header(&f))
	b.String(unix.TCA_KIND, "bpf")
	b.Nest(unix.TCA_OPTIONS, func() {
		b.Uint32(tcaBPFFD, uint32(p.FD()))
		b.String(tcaBPFName, "trellis:"+info.Name)
		b.Uint32(tcaBPFFlags, tcaBPFActDirect)
	})
	return errors.Join(execute(&b, unix.EEXIST), release())
}

// deleteFilter removes our filter from a hook, and with the last filter the
// device's clsact.
func deleteFilter(ifindex int, attach ebpf.AttachType) error {
	c, err := rtnl.Dial()
	if err != nil {
		return err
	}
	defer c.Close()
	var left int
	for _, hook := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
		found, err := filters(c, ifindex, hook)
		if err != nil {
			return fmt.Errorf("read the filters of device %d: %w", ifindex, err)
		}
		left += len(found)
		for _, f := range found {
			if !f.ours || hook != attach {
				continue
			}
			left--
			var b rtnl.Batch
			h := tcMsg{Index: int32(ifindex), Handle: filterHandle, Parent: direction(attach), Info: filterPlace}
			b.Begin(unix.RTM_DELTFILTER, 0, rtnl.Header(&h))
			b.String(unix.TCA_KIND, "bpf")
			if err := execute(&b, unix.ENODEV); err != nil {
				return fmt.Errorf("delete the filter of device %d: %w", ifindex, err)
			}
		}
	}
	if left > 0 {
		return nil
	}
	var b rtnl.Batch
	h := tcMsg{Index: int32(ifindex), Handle: clsactHandle, Parent: clsactParent}
	b.Begin(unix.RTM_DELQDISC, 0, rtnl.Header(&h))
	// It may not be there: somebody else's work, or a crash before it was made.
	if err := execute(&b, unix.ENODEV, unix.ENOENT, unix.EINVAL); err != nil {
		return fmt.Errorf("delete the clsact of device %d: %w", ifindex, err)
	}
	return nil
}

// execute sends a batch; refusals for one of the reasons in fine are none.
func execute(b *rtnl.Batch, fine ...error) error {
	c, err := rtnl.Dial()
	if err != nil {
		return err
	}
	defer c.Close()
	failed, err := c.Execute(b)
	if err != nil {
		return err
	}
	var errs []error
next:
	for _, f := range failed {
		for _, reason := range fine {
			if errors.Is(f.Err, reason) {
				continue next
			}
		}
		errs = append(errs, f.Err)
	}
	return errors.Join(errs...)
}
