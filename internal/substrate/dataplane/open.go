package dataplane

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/cilium/ebpf"

	"trellis/internal/substrate/kernel"
)

// Dataplane is the data plane of one instance. Its methods may be called from
// several goroutines at once, but see only the devices of the calling thread's
// network namespace.
type Dataplane struct {
	dir      string
	build    build
	maps     pinnedMaps
	programs map[string]*ebpf.Program
	ids      map[string]ebpf.ProgramID // of programs
	names    map[ebpf.ProgramID]string // of programs, other builds' too
	filters  bool                      // new anchors are filters: the kernel has no tcx
	noFast   error                     // why the kernel has no fast path
	noCut    error                     // why its uplinks do not forward by cut-through
	readers  *readers
	closed   sync.Once

	mu       sync.Mutex                          // guards what follows, and the read-modify-write of maps
	devices  map[string]map[string]devicePins    // that have programs, by VNet and name
	changes  map[string]uint64                   // of devices, by VNet: what is read from pins meanwhile is old
	ports    *indexed[uint32, portProgsPort]     // by interface index
	egresses *table[uint32, portProgsEgress]     // by number
	overflow *table[portProgsEgressKey, uint32]  // numbers of egress entries
	tunnels  *indexed[uint32, uplinkProgsTunnel] // by key, as it stands in a frame
	uplinks  *table[uint32, uplinkProgsUplink]   // by interface index
	rates    *table[uint32, portProgsRate]       // by the slots of ports
	slots    allocator                           // of devices
	numbers  allocator                           // of egress entries
	index    *egressIndex
	cuts     *cutEnds
	nodes    map[uint64]*block // by the cookies of their network namespaces
	keys     map[uint32]uint32 // the ports that have them
	pathOf   map[uint32]uint32 // by the port that a path's frames go to: the port whose path it is
	taps     map[uint32][]*tap // by the slots of ports
	copies   *copies           // where taps are served from; nil: there are none
}

// Open loads the programs and maps into dir, which [Mount] has made a bpffs, or
// adopts those that are pinned there. Programs of another build are replaced in
// every link, each atomically, so that no frame is lost; maps are kept.
func Open(dir string) (*Dataplane, error) { return open(dir, build{hasTCX: hasTCX}) }

// build is what tests change of a build of Trellis, or of the kernel.
type build struct {
	hasTCX func(*ebpf.Program) (bool, error)
	edit   func(*ebpf.CollectionSpec) // of the programs; nil: they stay as they are
}

func open(dir string, b build) (*Dataplane, error) {
	mounted, err := isBPFFS(dir)
	if err != nil {
		return nil, err
	}
	if !mounted {
		return nil, fmt.Errorf("%s is not a bpffs; mount one first (mount -t bpf bpf %s)", dir, dir)
	}
	d := &Dataplane{
		dir: dir, build: b, maps: pinnedMaps{}, programs: map[string]*ebpf.Program{}, ids: map[string]ebpf.ProgramID{}, names: map[ebpf.ProgramID]string{},
		nodes: map[uint64]*block{}, keys: map[uint32]uint32{}, pathOf: map[uint32]uint32{},
		taps: map[uint32][]*tap{}, devices: map[string]map[string]devicePins{}, changes: map[string]uint64{},
	}
	if err := d.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("open the data plane at %s: %w", dir, err), d.Close())
	}
	return d, nil
}

func (d *Dataplane) open() (err error) {
	if d.readers, err = newReaders(); err != nil {
		return err
	}
	// What the process before has freed is nobody's from here on.
	if err := d.readers.quiesce(); err != nil {
		return err
	}
	d.slots, d.numbers = newAllocator(maxPorts, d.readers.quiesce), newAllocator(maxEgresses, d.readers.quiesce)
	fresh, err := d.load()
	if err != nil {
		return err
	}
	for name, p := range fresh {
		if err := d.adopt(name, p); err != nil {
			return err
		}
	}
	tcx, err := d.build.hasTCX(d.programs["port_in"])
	if err != nil {
		return fmt.Errorf("try tcx: %w", err)
	}
	d.filters = !tcx
	return d.adoptAnchors()
}

// load makes or adopts the maps and loads the programs of this build.
func (d *Dataplane) load() (fresh map[string]*ebpf.Program, err error) {
	if err := os.MkdirAll(filepath.Join(d.dir, ownDir, layoutVersion), 0o700); err != nil {
		return nil, fmt.Errorf("make the directory for maps: %w", err)
	}
	if err := d.carryMaps(); err != nil {
		return nil, err
	}
	fresh = map[string]*ebpf.Program{}
	for _, spec := range []func() (*ebpf.CollectionSpec, error){loadPortProgs, loadLanProgs} {
		if err = d.loadSpec(spec, fresh); err != nil {
			break
		}
	}
	if err == nil {
		err = d.loadUplink(fresh)
	}
	if err == nil {
		err = d.loadFast(fresh)
	}
	if err == nil {
		err = d.openTables()
	}
	if err != nil {
		return nil, errors.Join(err, closeAll(fresh))
	}
	return fresh, nil
}

// loadFast loads the programs of nodes' ends. A kernel that cannot run the fast
// path's runs the other.
func (d *Dataplane) loadFast(fresh map[string]*ebpf.Program) error {
	err := d.loadSpec(loadFastProgs, fresh)
	if err == nil {
		return nil
	}
	d.noFast = fmt.Errorf("this kernel cannot forward on nodes' behalf, which takes Linux 6.2 with BTF: %w", err)
	return d.loadSpec(func() (*ebpf.CollectionSpec, error) {
		spec, err := loadFastProgs()
		if err == nil {
			delete(spec.Programs, "node_in")
		}
		return spec, err
	}, fresh)
}

// loadSpec loads the programs of a file, and its maps where no other had them.
func (d *Dataplane) loadSpec(load func() (*ebpf.CollectionSpec, error), fresh map[string]*ebpf.Program) error {
	spec, err := load()
	if err != nil {
		return err
	}
	if d.build.edit != nil {
		d.build.edit(spec)
	}
	for _, m := range spec.Maps {
		m.Pinning = ebpf.PinByName
	}
	pins := ebpf.MapOptions{PinPath: filepath.Join(d.dir, ownDir, layoutVersion)}
	c, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{Maps: pins})
	if err != nil {
		return d.explain(err)
	}
	defer c.Close()
	for name := range c.Programs {
		fresh[name] = c.DetachProgram(name)
	}
	for name := range c.Maps {
		if d.maps[name] == nil {
			d.maps[name] = c.DetachMap(name)
		}
	}
	return nil
}

// explain adds what to do about what commonly goes wrong.
func (d *Dataplane) explain(err error) error {
	switch {
	case errors.Is(err, ebpf.ErrMapIncompatible):
		return fmt.Errorf("the pinned maps are of a layout that this build does not know; take all networks down with the build that made them, then unmount %s: %w", d.dir, err)
	case errors.Is(err, ebpf.ErrNotSupported):
		return fmt.Errorf("this kernel cannot run the programs; use one with CONFIG_BPF_SYSCALL, and Linux %v or later: %w", kernel.Minimum, err)
	}
	return fmt.Errorf("load the programs: %w", err)
}

// adopt takes the pinned program if it is the same as the fresh one, else pins
// the fresh one in its place. Sameness is the kernel's tag, a digest of the
// instructions.
func (d *Dataplane) adopt(name string, fresh *ebpf.Program) error {
	path := filepath.Join(d.dir, ownDir, name)
	current := fresh
	old, err := ebpf.LoadPinnedProgram(path, nil)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = fresh.Pin(path)
	case err == nil:
		var same bool
		if same, err = sameProgram(old, fresh); err != nil {
			break
		}
		if same {
			current = old
			err = fresh.Close()
		} else {
			err = errors.Join(old.Close(), replacePin(path, fresh))
		}
	}
	d.programs[name] = current
	if err != nil {
		return fmt.Errorf("pin the program %s: %w", name, err)
	}
	info, err := current.Info()
	if err != nil {
		return fmt.Errorf("read the program %s: %w", name, err)
	}
	id, _ := info.ID()
	d.ids[name], d.names[id] = id, name
	return nil
}

func sameProgram(a, b *ebpf.Program) (bool, error) {
	ai, err := a.Info()
	if err != nil {
		return false, err
	}
	bi, err := b.Info()
	if err != nil {
		return false, err
	}
	return ai.Tag == bi.Tag && ai.Name == bi.Name, nil
}

// replacePin pins p at path, where another program is pinned, in one step.
func replacePin(path string, p *ebpf.Program) error {
	next := path + ":next"
	if err := unpin(next); err != nil { // left by a crash here
		return err
	}
	if err := p.Pin(next); err != nil {
		return err
	}
	return os.Rename(next, path)
}

// openTables reads the maps that this process keeps in memory.
func (d *Dataplane) openTables() (err error) {
	if d.index, err = openEgressIndex(d.maps["egress_index"]); err != nil {
		return err
	}
	if d.cuts, err = openCutEnds(d.maps["cut_ends"]); err != nil {
		return err
	}
	d.ports, err = openIndexed(d.maps, "port_index", "ports", func(index uint32, p portProgsPort) portProgsPort {
		p.Index = index
		return p
	}, newAllocator(maxPortEntries, d.readers.quiesce))
	if err != nil {
		return err
	}
	if d.egresses, err = openTable[uint32, portProgsEgress](d.maps["egresses"], "egresses"); err != nil {
		return err
	}
	if d.overflow, err = openTable[portProgsEgressKey, uint32](d.maps["egress_overflow"], "egress_overflow"); err != nil {
		return err
	}
	if d.rates, err = openTable[uint32, portProgsRate](d.maps["rates"], "rates"); err != nil {
		return err
	}
	d.tunnels, err = openIndexed(d.maps, "tunnel_index", "tunnels", func(key uint32, t uplinkProgsTunnel) uplinkProgsTunnel {
		t.Key = key
		return t
	}, newAllocator(maxPortEntries, d.readers.quiesce))
	if err != nil {
		return err
	}
	if d.uplinks, err = openTable[uint32, uplinkProgsUplink](d.maps["uplinks"], "uplinks"); err != nil {
		return err
	}
	return d.carryEntries()
}

// adoptAnchors brings every anchor up to this build's programs, and forgets
// the entries of devices that are gone.
func (d *Dataplane) adoptAnchors() error {
	vnets, err := d.vnets()
	if err != nil {
		return err
	}
	if _, err := d.scan(vnets, d.adoptAnchor); err != nil {
		return err
	}
	uplinks, err := d.uplinkNames()
	if err != nil {
		return err
	}
	for _, name := range uplinks {
		path, err := d.uplinkPath(name)
		if err != nil {
			return err
		}
		a, err := openAnchor(path)
		if err != nil || a == nil {
			return err
		}
		if err := errors.Join(d.adoptAnchor(a), a.Close()); err != nil {
			return err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.adoptPaths(); err != nil { // first, since it finds what is in use
		return err
	}
	if err := d.forgetUplinks(); err != nil {
		return err
	}
	if err := d.forgetUnpinned(); err != nil {
		return err
	}
	missing, err := d.addMissing()
	if err != nil {
		return err
	}
	if missing || len(d.uplinks.rows) < len(uplinks) {
		if err := d.emptySlots(); err != nil {
			return err
		}
	}
	return d.removeOtherLayouts()
}

// emptySlots takes what is left of lost entries out of the slots that nobody has.
func (d *Dataplane) emptySlots() error {
	for slot, used := range d.slots.used {
		if slot == 0 || used {
			continue
		}
		if err := d.maps.remove("devices", uint32(slot)); err != nil {
			return err
		}
	}
	return nil
}

// adoptAnchor replaces the program of an anchor that is another build's.
func (d *Dataplane) adoptAnchor(a *anchor) error {
	if a.program == 0 || a.index == 0 {
		return nil // Attach mends it
	}
	name, err := d.programName(a.program)
	if err != nil {
		return err
	}
	if name == "node_in" && d.noFast != nil {
		name = "node_pass"
	}
	current, known := d.programs[name]
	if !known {
		return fmt.Errorf("what %s stands for runs a program %q that this build does not have; remove the pin", a.path, name)
	}
	if a.program == d.ids[name] {
		return nil
	}
	if err := a.update(current); err != nil {
		return fmt.Errorf("replace the program of %s: %w", a.path, err)
	}
	a.program = d.ids[name]
	return nil
}

// forgetUnpinned removes the entries of devices that have no pin or are gone.
func (d *Dataplane) forgetUnpinned() error {
	alive := make(map[uint32]bool, len(d.ports.rows))
	for _, v := range d.devices {
		for _, dev := range v {
			alive[uint32(dev.index)] = !dev.gone
		}
	}
	gone := map[uint32]bool{}
	for index := range d.ports.rows {
		if !alive[index] {
			gone[index] = true
		}
	}
	return d.forgetPorts(gone)
}

// addMissing gives an entry, unjoined, to devices that have programs and none: the
// process before was killed between the two, or its maps were of another layout.
func (d *Dataplane) addMissing() (missing bool, err error) {
	for _, v := range d.devices {
		for _, dev := range v {
			if dev.index == 0 || dev.gone {
				continue
			}
			if _, ok := d.ports.get(uint32(dev.index)); ok {
				continue
			}
			if err := d.addPort(dev.index, dev.role); err != nil {
				return missing, err
			}
			missing = true
		}
	}
	return missing, nil
}

// removeOtherLayouts removes the maps of builds with another layout: no program
// uses them any more.
func (d *Dataplane) removeOtherLayouts() error {
	layouts, err := filepath.Glob(filepath.Join(d.dir, ownDir, "v*"))
	if err != nil {
		return err
	}
	for _, dir := range layouts {
		if filepath.Base(dir) == layoutVersion {
			continue
		}
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("remove the maps of another layout: %w", err)
		}
	}
	return nil
}

// programName gives the name of a loaded program, which may be another build's.
func (d *Dataplane) programName(id ebpf.ProgramID) (string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if name, ok := d.names[id]; ok {
		return name, nil
	}
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return "", fmt.Errorf("open the program %d: %w", id, err)
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		return "", fmt.Errorf("read the program %d: %w", id, err)
	}
	d.names[id] = info.Name
	return info.Name, nil
}

// Close lets go of the descriptors and the mapped memory, once: another's may be where
// they were. The data plane lives on in its pins.
func (d *Dataplane) Close() (err error) {
	d.closed.Do(func() {
		if d.copies != nil {
			d.copies.reader.Close() // its taps end with their contexts
		}
		err = errors.Join(d.index.close(), d.cuts.close(), d.maps.close(), closeAll(d.programs), d.readers.close())
	})
	return err
}

func closeAll(programs map[string]*ebpf.Program) error {
	var errs []error
	for _, p := range programs {
		errs = append(errs, p.Close())
	}
	return errors.Join(errs...)
}
