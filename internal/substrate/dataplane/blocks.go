package dataplane

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

const (
	maxEgress = 131072 // MAX_EGRESS of bpf/ends.h
	grain     = 8      // places of a block are a multiple
	// largestSpan bounds what one node can take of the places that all share; its
	// interfaces beyond are found by a hash.
	largestSpan = 1024
)

// block is a node's places in the map egress: base plus the interface index of
// one of its ends is that end's.
type block struct {
	base, span uint32          // base 0: there are none
	ends       map[uint32]bool // the ports of its ends, by interface index in the root context
}

// egress is the map of that name, in this process's memory, and who has which of
// its places.
type egress struct {
	places []uint64
	memory []byte
	used   [maxEgress / grain]bool
}

// openEgress maps the map into memory.
func openEgress(m *ebpf.Map) (*egress, error) {
	memory, err := unix.Mmap(m.FD(), 0, maxEgress*8, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map the map of nodes' ends into memory: %w", err)
	}
	e := &egress{memory: memory, places: unsafe.Slice((*uint64)(unsafe.Pointer(&memory[0])), maxEgress)}
	e.used[0] = true // base 0 is none
	return e, nil
}

func (e *egress) close() error {
	if e == nil {
		return nil
	}
	return unix.Munmap(e.memory)
}

// set makes a place hold an end's, 0 for none.
func (e *egress) set(place, end uint32) { atomic.StoreUint64(&e.places[place], uint64(end)) }

func (e *egress) get(place uint32) uint32 { return uint32(atomic.LoadUint64(&e.places[place])) }

// take marks a block as used that a node has already; false if it is none.
func (e *egress) take(base, span uint32) bool {
	if base%grain != 0 || span%grain != 0 || base == 0 || span == 0 || span > largestSpan || base+span > maxEgress {
		return false
	}
	for i := base / grain; i < (base+span)/grain; i++ {
		e.used[i] = true
	}
	return true
}

// allocate finds a block of a span, which is a multiple of grain; 0 if there is
// none.
func (e *egress) allocate(span uint32) (base uint32) {
	want, run := span/grain, uint32(0)
	for i := range uint32(len(e.used)) {
		if e.used[i] {
			run = 0
			continue
		}
		if run++; run == want {
			base = (i + 1 - want) * grain
			e.take(base, span)
			return base
		}
	}
	return 0
}

// free empties a block and takes it back.
func (e *egress) free(base, span uint32) {
	for i := range span {
		e.set(base+i, 0)
	}
	for i := base / grain; i < (base+span)/grain; i++ {
		e.used[i] = false
	}
}

// spanFor is how many places a node needs that has an end of the interface index.
func spanFor(ifindex uint32) uint32 {
	span := uint32(grain)
	for span <= ifindex {
		span *= 2
	}
	return span
}

// reserve sees to it that a node's block has a place for the interface index, if
// it can be, and moves the node to a larger one if need be.
func (d *Dataplane) reserve(netns uint64, ifindex uint32) (*block, error) {
	b := d.nodes[netns]
	if b == nil {
		b = &block{ends: map[uint32]bool{}}
		d.nodes[netns] = b
	}
	span := spanFor(ifindex)
	if span <= b.span || span > largestSpan {
		return b, nil
	}
	base := d.egress.allocate(span)
	if base == 0 {
		return b, nil
	}
	old := *b
	b.base, b.span = base, span
	for port := range b.ends {
		e, ok, err := d.entry(int(port))
		if err != nil {
			return nil, err
		}
		if !ok {
			continue
		}
		e.Base, e.Span = base, span
		if err := d.setEntry(int(port), e); err != nil {
			return nil, err
		}
		if err := d.show(e); err != nil {
			return nil, err
		}
	}
	// Until they know the new one, others' hints lead nowhere: to the stack.
	for port := range b.ends {
		if err := d.tell(port); err != nil {
			return nil, err
		}
	}
	if old.base != 0 {
		d.egress.free(old.base, old.span)
	}
	return b, nil
}

// release takes a port's end out of its node's block, and the block back with
// the node's last end.
func (d *Dataplane) release(port uint32, e portProgsPort) error {
	if e.Netns == 0 {
		return nil
	}
	e.End = 0
	err := d.show(e)
	if b := d.nodes[e.Netns]; b != nil {
		if delete(b.ends, port); len(b.ends) == 0 {
			if b.base != 0 {
				d.egress.free(b.base, b.span)
			}
			delete(d.nodes, e.Netns)
		}
	}
	return err
}

// show has the fast path find a port's end where its entry says, and nowhere
// else.
func (d *Dataplane) show(e portProgsPort) error {
	if e.Netns == 0 {
		return nil
	}
	key := portProgsEndKey{Netns: e.Netns, Ifindex: e.Ifindex}
	if e.Base != 0 && e.Ifindex < e.Span {
		d.egress.set(e.Base+e.Ifindex, e.End)
		return d.maps.remove("far_egress", key)
	}
	if e.End == 0 {
		return d.maps.remove("far_egress", key)
	}
	if err := d.maps["far_egress"].Put(key, e.End); err != nil {
		return fmt.Errorf("show the fast path an end: %w", err)
	}
	return nil
}

// maps are the pinned maps by their names.
type maps map[string]*ebpf.Map

// remove deletes a key, which may be missing.
func (m maps) remove(name string, key any) error {
	if err := m[name].Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("delete an entry of the map %s: %w", name, err)
	}
	return nil
}

func (m maps) close() error {
	var errs []error
	for _, each := range m {
		errs = append(errs, each.Close())
	}
	return errors.Join(errs...)
}
