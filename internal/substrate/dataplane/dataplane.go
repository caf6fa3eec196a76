// Package dataplane holds the BPF programs, maps and links of Trellis.
package dataplane

import "errors"

// Role says where in the data plane a device stands.
type Role uint8

// Roles.
const (
	Port   Role = iota // a node's port, or the shaped end of a helper pair: joined with one other
	Member             // a device enslaved to a LAN's bridge
	Bridge             // the LAN's bridge device itself
)

// Mode says what happens to the frames that come in at a device.
type Mode uint32

// Modes.
const (
	Unjoined Mode = iota // dropped
	Direct               // handed into the peer's node (bpf_redirect_peer)
	Shaped               // queued at the peer's qdisc (bpf_redirect)
	Switched             // bridged; of Members
)

// End is one end of a joint.
type End struct {
	Index  int  // interface index of the port
	Shaped bool // what goes to this end passes its qdisc; always so for helpers
}

// Attachment is a device that carries the programs of its role.
type Attachment struct {
	VNet, Device string
	Index        int // 0: the device is gone
	Role         Role
	Peer         int // interface index, 0: none
	Mode         Mode
	Current      bool // runs the programs of this build
}

// PortCounters counts the frames of one port since it was attached.
// Packets count as on the wire: a super-packet counts its segments.
type PortCounters struct {
	FromNodePackets, FromNodeBytes uint64
	ToNodePackets, ToNodeBytes     uint64
	Drops                          map[string]uint64 // by reason, frames that came in here
}

// Dataplane is the data plane of one instance.
type Dataplane struct{}

// Mount mounts a bpffs at dir unless there is one; Unmount unmounts it, and with it goes everything pinned.
func Mount(dir string) error   { return errors.ErrUnsupported }
func Unmount(dir string) error { return errors.ErrUnsupported }

// Open loads programs and maps, or adopts those pinned in dir, a bpffs.
func Open(dir string) (*Dataplane, error) { return nil, errors.ErrUnsupported }

// Close lets go of the descriptors; the data plane lives on in its pins.
func (d *Dataplane) Close() error { return errors.ErrUnsupported }

// Attach attaches the programs of the role to a device. Idempotent.
func (d *Dataplane) Attach(vnet, device string, ifindex int, role Role) error {
	return errors.ErrUnsupported
}

// Join joins two ports, both attached with role Port, in both directions.
func (d *Dataplane) Join(a, b End) error { return errors.ErrUnsupported }

// Part ends the joints of the ports.
func (d *Dataplane) Part(ifindex ...int) error { return errors.ErrUnsupported }

// Read gives all attachments, sorted by VNet and device.
func (d *Dataplane) Read() ([]Attachment, error) { return nil, errors.ErrUnsupported }

// Remove detaches devices of a VNet; all of them if none is named.
func (d *Dataplane) Remove(vnet string, devices ...string) error { return errors.ErrUnsupported }

// Counters reads the counters of all ports by interface index.
func (d *Dataplane) Counters() (map[int]PortCounters, error) { return nil, errors.ErrUnsupported }
