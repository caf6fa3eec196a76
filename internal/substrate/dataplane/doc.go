// Package dataplane joins ports: it holds the BPF programs of bpf/, their maps,
// and the links that keep them on the devices of the root context.
//
// Everything lives in a bpffs directory of the instance, so it outlives the
// process: a service that stops, crashes or is upgraded leaves the frames
// flowing, and the next one adopts what runs. [Open] puts the programs of this
// build in the place of another's, link by link, each in one atomic step.
//
//	<dir>/@/v1/ports, counters   the maps; v1 is their layout
//	<dir>/@/port_in, …           the programs
//	<dir>/<vnet>/<device>        the link at the device's ingress
//	<dir>/<vnet>/<device>:out    the link at its egress
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
