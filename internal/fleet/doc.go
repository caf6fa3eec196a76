// Package fleet lets the service of one substrate node ask the agents of the
// others: AgentService (api/trellis/v1) over TLS, with certificates on both
// sides.
//
// A [Fleet] gives the agent of any substrate node as a [agentapi.Agent]: the one
// of this machine as it is, every other one as a client that looks the same. A
// [Server] offers this machine's agent to the others.
//
// Who is who is told by certificates of one authority: that of a server carries
// the substrate node's name as a DNS name, and the peer insists on it; that of a
// client may list roles as organizational units, and must then list vnp, whose
// work it is to reach into nodes. Addresses play no part.
//
// The store says where an agent listens and whether it lives. So a substrate
// node that has vanished costs a sentence and no wait, and one that answers
// nothing costs a few seconds.
package fleet
