package dataplane

import (
	"cmp"
	"maps"
	"path/filepath"
	"slices"
	"strings"
)

// devicePins is what is known of a device that has programs, as its pins tell.
type devicePins struct {
	index     int  // of the interface when it was attached; 0: not known
	gone      bool // there was no such interface when it was last looked for
	role      Role
	complete  bool // no program of the role is missing
	xdp, fast bool // at the far end there is a program; it is the fast path's
}

// device gives what is known of a device.
func (d *Dataplane) device(vnet, name string) (devicePins, bool) {
	dev, ok := d.devices[vnet][name]
	return dev, ok
}

// setDevice notes what is known of a device.
func (d *Dataplane) setDevice(vnet, name string, dev devicePins) {
	if d.devices[vnet] == nil {
		d.devices[vnet] = map[string]devicePins{}
	}
	d.devices[vnet][name] = dev
	d.changes[vnet]++
}

// forgetDevices forgets what is known of devices.
func (d *Dataplane) forgetDevices(vnet string, names []string) {
	for _, name := range names {
		delete(d.devices[vnet], name)
	}
	if len(d.devices[vnet]) == 0 {
		delete(d.devices, vnet)
	}
	d.changes[vnet]++
}

// Read gives the attachments of the VNets, of all if none is named, sorted by
// VNet and device. A device of which a program is missing is not listed: Attach
// mends it.
//
// It is answered from memory. What others than this process have done to pins,
// filters and devices shows after [Dataplane.Resync]: until then a device that is
// gone has the interface index that it had, which the kernel gives to no other.
func (d *Dataplane) Read(vnets ...string) ([]Attachment, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(vnets) == 0 {
		for name := range d.devices {
			vnets = append(vnets, name)
		}
	}
	var found []Attachment
	for _, vnet := range vnets {
		for name, dev := range d.devices[vnet] {
			if dev.complete {
				found = append(found, d.attachment(vnet, name, dev))
			}
		}
	}
	slices.SortFunc(found, func(a, b Attachment) int {
		return cmp.Or(cmp.Compare(a.VNet, b.VNet), cmp.Compare(a.Device, b.Device))
	})
	return found, nil
}

func (d *Dataplane) attachment(vnet, name string, dev devicePins) Attachment {
	a := Attachment{VNet: vnet, Device: name, Role: dev.role}
	if dev.gone {
		return a
	}
	a.Index = dev.index
	e, ok := d.ports.get(uint32(dev.index))
	if !ok {
		return a
	}
	a.Rate = d.rateOf(e)
	a.Peer, a.PeerMAC, a.Mode = int(e.Peer), macOf(e.PeerMac), Mode(e.Mode)
	if egress, ok := d.egresses.get(e.Egress); ok && a.Mode.crosses() {
		path := egress.path()
		a.Path = &path
	}
	if e.Ifindex != 0 { // else it takes nothing yet
		a.TakesXDP, a.Fast = dev.xdp, dev.fast
	}
	return a
}

// Resync reads the pins of VNets anew, of all if none is named, and gives the VNets
// where they are not as they were known: somebody has taken programs off, or devices
// have gone. It costs some system calls a device, so it is for rare looks at
// everything, not for each pass.
func (d *Dataplane) Resync(vnets ...string) (changed []string, err error) {
	if len(vnets) == 0 {
		names, err := d.vnets()
		if err != nil {
			return nil, err
		}
		d.mu.Lock()
		for name := range d.devices {
			names = append(names, name)
		}
		d.mu.Unlock()
		slices.Sort(names)
		vnets = slices.Compact(names)
	}
	return d.scan(vnets, nil)
}

// pinned is a device by its pins.
type pinned struct {
	vnet, name string
	pins       []string
	device     devicePins
}

// scan reads the pins of VNets and notes what they tell of
// devices. visit, which may be nil, is called for each anchor first.
func (d *Dataplane) scan(vnets []string, visit func(*anchor) error) (changed []string, err error) {
	d.mu.Lock()
	before := maps.Clone(d.changes)
	d.mu.Unlock()
	var all []*pinned
	for _, vnet := range vnets {
		names, err := d.pins(vnet)
		if err != nil {
			return nil, err
		}
		// A device's pins in a row, its own first.
		slices.SortFunc(names, func(a, b string) int {
			return cmp.Or(cmp.Compare(deviceOf(a), deviceOf(b)), cmp.Compare(a, b))
		})
		for _, pin := range names {
			if n := len(all); n > 0 && all[n-1].vnet == vnet && all[n-1].name == deviceOf(pin) {
				all[n-1].pins = append(all[n-1].pins, pin)
			} else {
				all = append(all, &pinned{vnet: vnet, name: deviceOf(pin), pins: []string{pin}})
			}
		}
	}
	for _, p := range all {
		if err := d.readPins(p, visit); err != nil {
			return nil, err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	fresh := map[string]map[string]devicePins{}
	for _, vnet := range vnets {
		if d.changes[vnet] == before[vnet] { // else what was read may be older than that
			fresh[vnet] = map[string]devicePins{}
		}
	}
	for _, p := range all {
		devices := fresh[p.vnet]
		if devices == nil {
			continue
		}
		if p.device.gone { // Remove still needs to know which it was
			had, _ := d.device(p.vnet, p.name)
			p.device.index = had.index
		}
		devices[p.name] = p.device
	}
	for vnet, devices := range fresh {
		if maps.Equal(devices, d.devices[vnet]) {
			continue
		}
		changed = append(changed, vnet)
		for name, dev := range d.devices[vnet] {
			if devices[name].index != dev.index {
				d.stopCut(uint32(dev.index))
			}
		}
		for _, dev := range devices {
			d.syncCut(dev)
		}
		if d.devices[vnet] = devices; len(devices) == 0 {
			delete(d.devices, vnet)
		}
	}
	slices.Sort(changed)
	return changed, nil
}

// readPins reads a device's anchors. Of a device that is gone nothing is missing.
func (d *Dataplane) readPins(p *pinned, visit func(*anchor) error) error {
	found := map[string]string{} // programs by the pins' suffixes
	index := map[string]int{}
	for _, pin := range p.pins {
		a, err := openAnchor(filepath.Join(d.dir, p.vnet, pin))
		if err != nil {
			return err
		}
		if a == nil { // removed meanwhile
			continue
		}
		err = d.readAnchor(a, strings.TrimPrefix(pin, p.name), visit, found, index)
		if closed := a.Close(); err == nil {
			err = closed
		}
		if err != nil {
			return err
		}
	}
	at, there := index[""]
	if !there {
		return nil
	}
	if found[""] == "" {
		p.device = devicePins{index: at, gone: at == 0, complete: at == 0}
		return nil
	}
	p.device = devicePins{index: at, gone: at == 0, role: roles[found[""]], complete: true}
	for _, h := range hooks[p.device.role] {
		if found[h.suffix] != h.program || index[h.suffix] != at {
			p.device.complete = false
		}
	}
	p.device.xdp = found[xdpSuffix] != "" && index[xdpSuffix] != 0
	p.device.fast = p.device.xdp && found[xdpSuffix] == "node_in"
	return nil
}

func (d *Dataplane) readAnchor(a *anchor, suffix string, visit func(*anchor) error, found map[string]string, index map[string]int) error {
	if visit != nil {
		if err := visit(a); err != nil {
			return err
		}
	}
	index[suffix] = a.index
	if a.program == 0 {
		return nil
	}
	name, err := d.programName(a.program)
	if err != nil {
		return err
	}
	found[suffix] = name
	return nil
}
