// Package probe looks at a running virtual network from inside its nodes: it
// sends echo requests from one node's network namespace to another node's
// loopback ([Ping]), and records the frames of one interface ([Capture]).
//
// Both work on a file descriptor of a node's network namespace, whatever
// container or namespace it came from. The namespace is entered only for as
// long as it takes to open a socket; a socket stays in the namespace where it
// was made, so everything after that runs on ordinary goroutines.
//
// A socket holds its namespace. A node that is deleted while it is being probed
// goes away completely when the probe ends.
package probe
