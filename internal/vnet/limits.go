package vnet

import (
	"net/netip"
	"time"
)

// What Complete fills in where the description is silent.
const (
	DefaultImage  = "host"
	DefaultMemory = 256 << 20 // bytes
	DefaultPids   = 512
	DefaultDisk   = 64 << 20 // bytes
	DefaultMTU    = 1500     // bytes of IP packet, as on Ethernet

	// DefaultExecTimeout is how long a command that a node runs at its start may take.
	DefaultExecTimeout = 30 * time.Second
)

// The pools that addresses are drawn from where the description names none.
var (
	DefaultIPv4 = netip.MustParsePrefix("10.0.0.0/8")
	DefaultIPv6 = netip.MustParsePrefix("fd00::/48")
)

// The bounds that Validate holds a description to.
const (
	MaxNodes      = 10_000
	MaxLinks      = 50_000
	MaxInterfaces = 110_000 // all links together
	MaxLANEnds    = 1_023   // ports of one Linux bridge: BR_PORT_BITS is 10, port 0 is not used

	MaxAddrs = 64 // of one interface

	MaxCPU    = 4096.0   // cores
	MinCPU    = 0.001    // cores; the CFS quota's own floor is 1 ms in a period of 100 ms or more
	MinMemory = 4 << 20  // bytes; below, nothing starts
	MaxMemory = 64 << 40 // bytes
	MinPids   = 8
	MaxPids   = 32768   // the least that any machine's kernel.pid_max starts from: more would be no limit
	MinDisk   = 1 << 20 // bytes
	MaxDisk   = 64 << 40

	MinMTU     = 68    // RFC 791
	MinMTUIPv6 = 1280  // RFC 8200, section 5
	MaxMTU     = 65535 // of an IP packet; the veth's own bound (ETH_MAX_MTU)

	MinRate  = 1_000               // bit/s
	MaxRate  = 100_000_000_000_000 // bit/s
	MaxDelay = time.Minute
	MaxCost  = 65535 // OSPF's; protocols with a smaller range clamp it

	MaxFileSize    = 1 << 20  // bytes of one placed file
	MaxPayload     = 16 << 20 // bytes of all placed files, commands and environments together
	MaxStringValue = 64 << 10 // bytes of one command, argument or environment value
	MaxDisplay     = 128      // bytes of a display name
	MinExecTimeout = time.Second
	MaxExecTimeout = time.Hour
	MaxListLength  = 1_024 // of cmd, exec, env, files, sysctls in one node
)
