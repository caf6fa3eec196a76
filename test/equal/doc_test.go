// Package equal tries whether a node's fast path and its stack do the same.
//
// Two routers that are alike in all but this, one with the fast path on and one
// with it off, get the same frames from an uplink. What comes out of each, at
// the uplink, at a neighbour's end and at a device of the tenant's, is compared:
//
//	               ┌─ router "fast" ─ eth1, eth2, eth3 (EGRE) ─┐
//	wire ── uplink ┤                  eth4 ── neighbour        ├─ uplink ── wire
//	               └─ router "slow" ─ the same                 ┘
//
// What the routers hold, routes, rules, sysctls, filters and the like, is a
// world; worlds and frames are made from a seed. A difference is cut down to one
// frame and the parts of the world that it takes, and printed.
//
//	TRELLIS_EQUAL_SEED=17 go test ./test/equal -run TestEqual -v    one world, again
//	TRELLIS_EQUAL_CASES=1000000 go test ./test/equal -timeout 6h    more of them
package equal
