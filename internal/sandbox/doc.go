// Package sandbox makes substrate nodes on one machine, for tests and for people
// who try Trellis out: each a network namespace with its own `trellis serve`,
// joined by an emulated underlay.
//
// The underlay is one more namespace, the fabric: a router with a point-to-point
// link to each host's uplink, eth1. Nothing else joins the hosts, so that all
// that goes from one to another goes through the fabric: the networks' frames,
// the store's and the agents' connections. There it can be cut, delayed and
// narrowed, and the machine's own interfaces have no part in it.
//
//	  namespace alpha            namespace fabric            namespace beta
//	┌────────────────────┐    ┌───────────────────┐    ┌────────────────────┐
//	│ trellis serve      │    │                   │    │      trellis serve │
//	│ 192.0.2.1/31  eth1 ╞════╡ alpha  ip_forward ╞════╡ eth1  192.0.2.3/31 │
//	└────────────────────┘    │              beta │    └────────────────────┘
//	                          └───────────────────┘
//
// The first host of the file keeps the store, the others join it. All of them
// show each other certificates of the sandbox's own authority, as machines do.
//
// What a sandbox has, by the directories that the caller names ([Place]):
//
//	RUN/sandbox/lock                  held by whoever changes a sandbox
//	RUN/sandbox/NAME/state            link to STATE/sandbox/NAME
//	RUN/sandbox/NAME/netns/HOST       pins the host's namespace; fabric: the fabric's
//	RUN/sandbox/NAME/HOST/            run directory of the host's service
//	STATE/sandbox/NAME/sandbox.json   what the sandbox was made from
//	STATE/sandbox/NAME/certs/         its certificates
//	STATE/sandbox/NAME/HOST/          state directory of the host's service, its log,
//	                                  and trellis.yaml, its configuration
//
// All of it is found by these paths, by the namespaces that they pin, and by the
// tag of each host's service, so that [Place.Down] removes everything of a
// sandbox whatever was killed at whatever moment.
package sandbox
