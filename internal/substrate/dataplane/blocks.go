package dataplane

import (
	"errors"
	"fmt"
	"math/bits"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

const (
	maxEgressIndex = 131072 // MAX_EGRESS_INDEX of bpf/egress.h
	blockOrder     = 24     // BLOCK_ORDER of bpf/metadata.h
	blockUnit      = 8      // places of a block are a multiple
	// maxBlock bounds what one node can take of the places that all share; its
	// interfaces beyond are found by a hash.
	maxBlock = 1024
)

// block is a node's places in the map egress_index: base plus the index of one of
// its interfaces is that interface's.
type block struct {
	base, size uint32          // base 0: there are none
	ports      map[uint32]bool // of its interfaces, by interface index in the root context
}

// egressIndex is the map of that name, in this process's memory, and which of its
// places are some node's.
type egressIndex struct {
	places []uint64
	memory []byte
	used   [maxEgressIndex / blockUnit]bool
	next   uint32 // unit behind the block that was allocated last
}

// openEgressIndex maps the map into memory.
func openEgressIndex(m *ebpf.Map) (*egressIndex, error) {
	memory, err := unix.Mmap(m.FD(), 0, maxEgressIndex*8, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map the index of egress entries into memory: %w", err)
	}
	e := &egressIndex{memory: memory, places: unsafe.Slice((*uint64)(unsafe.Pointer(&memory[0])), maxEgressIndex)}
	e.used[0] = true // base 0 is none
	return e, nil
}

func (e *egressIndex) close() error {
	if e == nil {
		return nil
	}
	return unix.Munmap(e.memory)
}

// set makes a place hold the number of an egress entry, 0 for none.
func (e *egressIndex) set(place, number uint32) {
	atomic.StoreUint64(&e.places[place], uint64(number))
}

func (e *egressIndex) get(place uint32) uint32 { return uint32(atomic.LoadUint64(&e.places[place])) }

// reserve marks a block as used that a node has already; false if it is none.
func (e *egressIndex) reserve(base, size uint32) bool {
	if base%blockUnit != 0 || size%blockUnit != 0 || base == 0 || size == 0 || size > maxBlock || base+size > maxEgressIndex {
		return false
	}
	for i := base / blockUnit; i < (base+size)/blockUnit; i++ {
		e.used[i] = true
	}
	return true
}

// allocate finds a block of a size, which is a multiple of blockUnit; 0 if there is
// none. It goes on where it found the last one, so that what is used already is not
// walked for each of many.
func (e *egressIndex) allocate(size uint32) (base uint32) {
	all := uint32(len(e.used))
	if base = e.find(size, e.next, all); base == 0 {
		base = e.find(size, 0, all)
	}
	if base != 0 {
		e.reserve(base, size)
		e.next = (base + size) / blockUnit
	}
	return base
}

// find looks for a block among units.
func (e *egressIndex) find(size, from, to uint32) (base uint32) {
	want, run := size/blockUnit, uint32(0)
	for i := from; i < to; i++ {
		if e.used[i] {
			run = 0
			continue
		}
		if run++; run == want {
			return (i + 1 - want) * blockUnit
		}
	}
	return 0
}

// free empties a block and takes it back.
func (e *egressIndex) free(base, size uint32) {
	for i := range size {
		e.set(base+i, 0)
	}
	for i := base / blockUnit; i < (base+size)/blockUnit; i++ {
		e.used[i] = false
	}
}

// blockSizeFor is how many places a node needs that has an interface of the index.
func blockSizeFor(ifindex uint32) uint32 {
	size := uint32(blockUnit)
	for size <= ifindex {
		size *= 2
	}
	return size
}

// blockHint gives what the metadata of frames for a port says of its node's block
// (bpf/metadata.h).
func blockHint(p portProgsPort) uint32 {
	if p.Block == 0 {
		return 0
	}
	return p.Block | uint32(bits.TrailingZeros32(p.BlockSize))<<blockOrder
}

// growBlock sees to it that a node's block has a place for the interface index, if
// it can be, and moves the node to a larger one if need be.
func (d *Dataplane) growBlock(netns uint64, ifindex uint32) (*block, error) {
	b := d.nodes[netns]
	if b == nil {
		b = &block{ports: map[uint32]bool{}}
		d.nodes[netns] = b
	}
	size := blockSizeFor(ifindex)
	if size <= b.size || size > maxBlock {
		return b, nil
	}
	base := d.index.allocate(size)
	if base == 0 {
		return b, nil
	}
	old := *b
	b.base, b.size = base, size
	for port := range b.ports {
		e, ok := d.ports.get(port)
		if !ok {
			continue
		}
		e.Block, e.BlockSize = base, size
		if err := d.ports.put(port, e); err != nil {
			return nil, err
		}
		if err := d.publishEgress(e); err != nil {
			return nil, err
		}
	}
	// Until they know the new one, others' hints lead nowhere: to the stack.
	for port := range b.ports {
		if err := d.syncSenders(port); err != nil {
			return nil, err
		}
	}
	if old.base != 0 {
		d.index.free(old.base, old.size)
	}
	return b, nil
}

// leaveBlock takes a port's egress entry out of its node's block, and frees the
// block with the node's last port.
func (d *Dataplane) leaveBlock(port uint32, e portProgsPort) error {
	if e.Netns == 0 {
		return nil
	}
	e.Egress = 0
	err := d.publishEgress(e)
	if b := d.nodes[e.Netns]; b != nil {
		if delete(b.ports, port); len(b.ports) == 0 {
			if b.base != 0 {
				d.index.free(b.base, b.size)
			}
			delete(d.nodes, e.Netns)
		}
	}
	return err
}

// publishEgress has the fast path find a port's egress entry where the port's entry
// says, and nowhere else.
func (d *Dataplane) publishEgress(e portProgsPort) error {
	if e.Netns == 0 {
		return nil
	}
	key := portProgsEgressKey{Netns: e.Netns, Ifindex: e.Ifindex}
	if e.Block != 0 && e.Ifindex < e.BlockSize {
		d.index.set(e.Block+e.Ifindex, e.Egress)
		return d.overflow.remove(key)
	}
	if e.Egress == 0 {
		return d.overflow.remove(key)
	}
	return d.overflow.put(key, e.Egress)
}

// pinnedMaps are the pinned maps by their names.
type pinnedMaps map[string]*ebpf.Map

// remove deletes a key, which may be missing.
func (m pinnedMaps) remove(name string, key any) error {
	if err := m[name].Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("delete an entry of the map %s: %w", name, err)
	}
	return nil
}

func (m pinnedMaps) close() error {
	var errs []error
	for _, each := range m {
		errs = append(errs, each.Close())
	}
	return errors.Join(errs...)
}
