package dataplane

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/cilium/ebpf"
)

// carriedLayout is the layout whose maps go on in this one: networks that run forward on.
const carriedLayout = "v4"

// carried are the maps that both layouts have. Of the others, ports and tunnels are
// converted, and caches start empty.
var carried = []string{
	"counters", "drops", "stack_exits", "devices", "egresses", "egress_index", "egress_overflow",
	"uplinks", "tunnel_addrs", "taps", "copies",
}

// carriedPort and carriedTunnel are the values of the hashes ports and tunnels then.
type (
	carriedPort struct {
		Netns                                                         uint64
		Ifindex, Peer, Mode, Slot, PeerSlot, Egress, Block, BlockSize uint32
		PeerMac                                                       uint64
	}
	carriedTunnel struct {
		Remote, Local             [16]byte
		Slot, Block, Longest, Tap uint32
	}
)

// carryMaps pins the earlier layout's maps among those of this one, where they are not yet.
func (d *Dataplane) carryMaps() error {
	for _, name := range carried {
		m, err := d.openCarried(name)
		if err != nil {
			return err
		}
		if m == nil {
			continue
		}
		err = m.Pin(filepath.Join(d.dir, ownDir, layoutVersion, name))
		if errors.Is(err, fs.ErrExist) { // a process that was killed here has
			err = nil
		}
		if err := errors.Join(err, m.Close()); err != nil {
			return fmt.Errorf("carry the map %s over: %w", name, err)
		}
	}
	return nil
}

// openCarried opens a map of the earlier layout; nil if there is none.
func (d *Dataplane) openCarried(name string) (*ebpf.Map, error) {
	m, err := ebpf.LoadPinnedMap(filepath.Join(d.dir, ownDir, carriedLayout, name), nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open the map %s of the layout %s: %w", name, carriedLayout, err)
	}
	return m, nil
}

// carryEntries enters the ports and tunnels of the earlier layout, before any program
// looks for them here. What is here already is newer.
func (d *Dataplane) carryEntries() error {
	err := carryHash(d, "ports", func(index uint32, p carriedPort) error {
		if _, ok := d.ports.get(index); ok {
			return nil
		}
		return d.ports.put(index, portProgsPort{
			Netns: p.Netns, Ifindex: p.Ifindex, Peer: p.Peer, Mode: portProgsMode(p.Mode), Slot: p.Slot,
			PeerSlot: p.PeerSlot, Egress: p.Egress, Block: p.Block, BlockSize: p.BlockSize, PeerMac: p.PeerMac,
		})
	})
	if err != nil {
		return err
	}
	return carryHash(d, "tunnels", func(key uint32, have carriedTunnel) error {
		if _, ok := d.tunnels.get(key); ok {
			return nil
		}
		// Its block is told in this layout's way by adoptPaths; until then it leads to the stack.
		t := uplinkProgsTunnel{Slot: have.Slot, Longest: have.Longest, Tap: have.Tap}
		t.Remote.In6U.U6Addr8, t.Local.In6U.U6Addr8 = have.Remote, have.Local
		return d.tunnels.put(key, t)
	})
}

// carryHash calls enter for each entry of a hash of the earlier layout.
func carryHash[K, V comparable](d *Dataplane, name string, enter func(K, V) error) error {
	m, err := d.openCarried(name)
	if err != nil || m == nil {
		return err
	}
	defer m.Close()
	t, err := openTable[K, V](m, name)
	if err != nil {
		return err
	}
	for key, value := range t.rows {
		if err := enter(key, value); err != nil {
			return fmt.Errorf("carry the map %s over: %w", name, err)
		}
	}
	return nil
}
