package softirq

import (
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// A Profiler finds out whose packets the CPUs work on. It holds its program ready, so
// that a profile of a busy machine takes no more than attaching it.
type Profiler struct {
	objects progsObjects
	cpus    int
}

// Use is what the packets took that arrived at a device.
type Use struct {
	Netns   uint64 // inode number of the network namespace
	Ifindex int
	Packets uint64
	Time    time.Duration // of all CPUs
	// Of every 4,096 packets of a CPU one is a sample. Repeats is how often one was seen
	// again meanwhile.
	Samples, Repeats uint64
}

// OpenProfiler loads the program. It needs type information of the kernel
// (CONFIG_DEBUG_INFO_BTF) and tracing by BPF (CONFIG_BPF_EVENTS).
func OpenProfiler() (*Profiler, error) {
	p := &Profiler{}
	if err := loadProgsObjects(&p.objects, nil); err != nil {
		return nil, fmt.Errorf("load the program that counts packets: %w", err)
	}
	var err error
	if p.cpus, err = ebpf.PossibleCPU(); err != nil {
		return nil, errors.Join(err, p.objects.Close())
	}
	return p, nil
}

// Close unloads the program.
func (p *Profiler) Close() error { return p.objects.Close() }

// Profile counts what arrives while wait runs.
func (p *Profiler) Profile(wait func()) (uses []Use, err error) {
	if err := p.clear(); err != nil {
		return nil, err
	}
	at, err := link.AttachTracing(link.TracingOptions{Program: p.objects.CountPacket})
	if err != nil {
		return nil, fmt.Errorf("count packets: %w", err)
	}
	wait()
	if err := at.Close(); err != nil {
		return nil, err
	}
	var device progsDevice
	perCPU := make([]progsUse, p.cpus)
	for it := p.objects.Uses.Iterate(); ; {
		if !it.Next(&device, &perCPU) {
			if err := it.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
				return nil, fmt.Errorf("read what packets took: %w", err)
			}
			return uses, nil
		}
		u := Use{Netns: uint64(device.Netns), Ifindex: int(device.Ifindex)}
		for _, c := range perCPU {
			u.Packets += c.Packets
			u.Time += time.Duration(c.Time)
			u.Samples += c.Samples
			u.Repeats += c.Repeats
		}
		uses = append(uses, u)
	}
}

// clear forgets the last profile.
func (p *Profiler) clear() error {
	var device progsDevice
	for {
		err := p.objects.Uses.NextKey(nil, &device)
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return nil
		}
		if err == nil {
			err = p.objects.Uses.Delete(device)
		}
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("forget what packets took: %w", err)
		}
	}
}
