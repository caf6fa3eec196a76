// Package vnp is the tenant's side of Trellis: it serves VNetService
// (api/trellis/v1) on top of admission (package pip), the store, and what the
// agent can tell and do about a running network ([Substrate]).
//
// A change is handed to pip, which commits it; from then on it goes on whether
// or not the client stays. What the client sees is the agent's report in the
// store, followed until it says that the work is done, or why it cannot be.
package vnp
