// Package store keeps what must survive a restart: the admitted VNets, the
// plans compiled from them, the substrate nodes, and what the agents report. It
// is etcd, in one of three ways:
//
//   - a server inside this process, alone in its cluster, without a listener of
//     any kind: nothing but this process can talk to it;
//   - the same, listening for the services of other hosts over TLS;
//   - another host's, or a cluster of its own, over TLS.
//
// Wherever TLS is used, both ends show a certificate of one authority (package
// pki).
//
// The package is the only place that knows the layout of the keys:
//
//	/trellis/v1/vnet/NAME           VNetRecord: the description and its state
//	/trellis/v1/summary/NAME        Summary of that record, for lists and admission
//	/trellis/v1/ids/BASE            name of the VNet that owns the id range (BASE: 8 hex digits)
//	/trellis/v1/plan/HOST/NAME      plan.Plan for one substrate node; an empty plan asks for removal
//	/trellis/v1/status/NAME/HOST    Status, as the agent of HOST reports it
//	/trellis/v1/host/HOST/record    Host, as its agent describes it
//	/trellis/v1/host/HOST/alive     which agent process lives; leased, so that it goes with the agent
//	/trellis/v1/host/HOST/gone      when somebody saw the agent vanish
//	/trellis/v1/chunk/KEY/G-ID/N    part of a large value of KEY, of generation G; see chunks.go
//	/trellis/v1/keys/next           where the next EGRE key comes from
//	/trellis/v1/protocol            the Protocol that the store is used in
//	/trellis/v1/identity            distinguishes this store from any other
//	/trellis/v1/epoch               how often the store was restored from a copy
//	/trellis/v1/full                there while the disk of a store that others use is full
//
// Values are JSON, compressed; see encode.
//
// # Consistency
//
// A description, its summary, its id range and its plans are written in one transaction
// ([Store.Put]), which fails with [ErrConflict] when the record has changed
// since it was read. [Store.Forget] removes all keys of a VNet the same way.
// A status is written only as long as there is a plan that it can be about.
//
// # Watches
//
// [Store.WatchPlans] and [Store.WatchStatus] first send all there is, then a
// Synced event, then every change. Old revisions are compacted away all the
// time; a watch that falls behind the compaction reads everything anew and
// sends the difference, so that a reader never notices more than that some
// intermediate values are missing.
//
// # When the store goes away
//
// An operation on a store that is elsewhere and does not answer fails with
// [ErrAway] within seconds. Watches and registrations wait and go on by
// themselves when it is back; [Store.Done] is not closed.
//
// # When the disk fails
//
// Every write checks first that the file system has room for it, so that a full
// disk is an [ErrNoSpace] and not a dead server; removals need less room than
// other writes, because removing is how room is made. What etcd cannot survive
// all the same (an I/O error in its log) ends the store: [Store.Done] is closed,
// [Store.Err] says why, and all calls fail with that.
package store
