// Package forward measures what it costs to forward a packet: through the
// machine's own stack, through XDP, and through virtual routers that are joined
// to the machine's cards in each of the ways that are in use.
//
// Every configuration is built in network namespaces that vanish with it:
//
//	outside          root context                    router
//	gen0 ────veth── nic0 ──(bridge, mirred,  ──veth── eth1
//	sink0 ───veth── nic1 ── VXLAN, programs) ──veth── eth2
//
// A program that the kernel runs on live frames (BPF_F_TEST_XDP_LIVE_FRAMES,
// commit b530e9e1063e) sends out of gen0, so that frames come in at nic0, the
// machine's card, without having cost a system call each. What comes out of
// nic1 meets a program at sink0, which compares the whole header with what a
// router must have made of it, counts, and drops.
//
// Generator, routers and sink share one core: what the sink counts in a second
// is the inverse of what a packet costs altogether. What generator and sink cost
// by themselves is measured with the sink at nic0.
package forward
