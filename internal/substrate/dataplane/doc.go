// Package dataplane joins ports: it holds the BPF programs of bpf/, their maps,
// and the links that keep them on the devices of the root context.
//
// Everything lives in a bpffs directory of the instance, so it outlives the
// process: a service that stops, crashes or is upgraded leaves the frames
// flowing, and the next one adopts what runs. [Open] puts the programs of this
// build in the place of another's, link by link, each in one atomic step.
//
//	<dir>/@/v5/ports, counters, …   the maps; v5 is their layout
//	<dir>/@/port_in, …              the programs
//	<dir>/@/uplink/<name>           the XDP link of an uplink, dots as colons
//	<dir>/<vnet>/<device>           the link at the device's ingress
//	<dir>/<vnet>/<device>:out       the link at its egress
//	<dir>/<vnet>/<device>:xdp       the XDP link at the far end of its veth pair
//
// A frame's paths, beside the shortbridge's on one machine:
//
//	node's stack ─▶ port ● port_in ─ EGRE ─▶ uplink        the stack path
//	uplink ● uplink_in ─▶ port ─▶ node's end ● node_in     what arrives
//	   node_in asks the node's own FIB                     the fast path:
//	      ├─▶ the neighbour's port, and so its node's end     on one machine
//	      ├─ EGRE ─▶ uplink                                   across machines
//	      └─▶ the node's stack, if in doubt
//
// Wire format: RFC 2784 and RFC 2890, see bpf/egre.h. Nothing in a frame's bytes
// chooses its outer addresses or key; they follow from the port. What arrives
// must show an (outer source, destination, key) that has been connected.
//
// On kernels before 6.6, which have no such links (tcx), filters of clsact do
// their work, and records of them stand in the links' places; see clsact.go.
//
// Order matters for safety: a port's programs are what keeps a tenant's frames
// from the root context's stack. Make a port down, [Dataplane.Attach], then
// take it up; delete it, or take it down, then [Dataplane.Remove].
//
// docs/dataplane.md tells how a frame travels.
package dataplane
