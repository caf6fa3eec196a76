// Package serve is the composition root of the service: it puts the store, the
// provider, the agent and the API together, and runs them as one process that
// can be started in the foreground, by systemd, or in the background by the
// first verb that needs it.
//
// What runs in the networks does not depend on the process: stopping, killing or
// replacing it touches no node and no packet. The next start adopts all.
//
// Files of an instance:
//
//	RUN/lock           locked while the service runs; holds its process id
//	RUN/trellis.sock   the API, and /metrics; mode 0600
//	STATE/etcd         the store, unless it is elsewhere
//	STATE/host         the name of this substrate node, fixed at the first start
//	STATE/id           distinguishes this state directory from any other
//	STATE/store-id     which store elsewhere the host belongs to
//	STATE/trellis.log  the log of a service in the background
package serve
