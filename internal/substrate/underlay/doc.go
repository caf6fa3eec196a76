// Package underlay knows the routes between substrate nodes: by which uplink,
// from which address and to which next hop the packets of a tunnel leave, and
// how large they may be.
//
// An outer header is written once, when a tunnel is connected, and no stack
// looks at it on its way out. So what a stack would have looked up for each
// packet is looked up here, and looked up again whenever routes, neighbours,
// links or addresses of the root context change: [Underlay.Changes].
//
// The kernel is asked to keep the neighbours that are used resolved
// (NTF_EXT_MANAGED, kernel 5.16, commit 7482e3841d52), whether or not a service
// runs. Their entries carry [Protocol].
//
// The size of packets follows RFC 1191 and RFC 8201: see mtu.go.
package underlay
