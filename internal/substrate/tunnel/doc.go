// Package tunnel carries virtual links across machines by EGRE, and forwards on
// the nodes' behalf: the programs uplink_in, tunnel_in and node_in of bpf/, their
// maps, and the links that keep them on devices.
//
// A frame's ways:
//
//	node's stack ─▶ port ● tunnel_in ─ EGRE ─▶ uplink      the stack path
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
// Programs and links live as long as the [Tunnel] that has made them.
package tunnel
