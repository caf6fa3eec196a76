// Package pip is the infrastructure provider's part: it decides whether a VNet
// is admitted to this machine, gives it what no two VNets may share, and
// stores its description and its plan in one transaction. From there on the
// agent takes over.
//
// # What is granted
//
// A VNet gets a range of 65,536 user and group ids of the machine to itself;
// see idSpace. Device names and link groups follow from the names of their
// owners (package plan) and need no bookkeeping. Processor, memory, process and
// disk limits of nodes are ceilings and not reservations: nothing is set aside
// for a node, and the sum of all ceilings may exceed the machine. A network of
// 754 nodes with 256 MiB each at most is thus admitted to a machine of 24 GiB,
// on which it in fact uses one.
//
// # Changes
//
// Requests for one VNet are served one after the other, requests for different
// VNets side by side. A request that changes nothing writes nothing.
package pip
