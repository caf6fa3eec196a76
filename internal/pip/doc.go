// Package pip is the infrastructure provider's part: it decides whether a VNet
// is admitted to the substrate nodes of a store, places it, gives it what no two
// VNets may share, and stores its description and its plans, one for each
// substrate node, in one transaction. From there on the agents do the work.
//
// # What is granted
//
// A VNet gets a range of 65,536 user and group ids of the machines to itself;
// see idSpace. Each span, that is each path of a link between two substrate nodes,
// gets an EGRE key that no other has. Device names and link groups follow from
// the names of their owners (package plan) and need no bookkeeping. Processor,
// memory, process and disk limits of nodes are ceilings and not reservations:
// nothing is set aside for a node, and the sum of all ceilings may exceed the
// machine. A network of 754 nodes with 256 MiB each at most is thus admitted to a
// machine of 24 GiB, on which it in fact uses one.
//
// # Placement
//
// An [Embedder] chooses among the substrate nodes that are alive. Nodes stay where
// they are unless their description names another substrate node, and those on one
// that has vanished stay there in any case: they may still run.
//
// # Changes
//
// Requests for one VNet are served one after the other, requests for different
// VNets side by side, and so are those of other providers on the same store:
// transactions keep them apart. A request that changes nothing writes nothing.
package pip
