// Package attack tries what a node's root can do to take the machine, or other networks',
// share of it: each attack of docs/security.md, from a node of small limits, for some
// seconds, while another network sends, and verbs are run. It measures what the machine
// and the others lose.
//
// Each attack stops by itself, and takes no more than some hundreds of MiB or some
// thousands of things, so that a machine survives one that is not held.
package attack

import (
	"embed"
	"fmt"
	"path"
	"strings"
)

// An Attack is what a node's root does.
type Attack struct {
	Name string
	What string // it tries
	file string
	both bool // both nodes of the network do it
}

//go:embed scripts probes
var files embed.FS

// Attacks are all there are.
func Attacks() []Attack {
	return []Attack{
		{"loop-bridges", "packets circle between two bridges of a node", "loop-bridges.sh", false},
		{"loop-links", "packets circle over two links that two nodes bridge", "loop-links.sh", true},
		{"packet-rings", "rings of packet sockets, 512 MiB", "packet-rings.py", false},
		{"device-queues", "packets wait in a queue of 2 GB", "device-queues.sh", false},
		{"netlink-queues", "messages that nobody reads, of 20,000 netlink sockets", "netlink-queues.py", false},
		{"fragments", "fragments of packets that never come, the limit raised", "fragments.py", false},
		{"fanout-groups", "900 groups of packet sockets, for 65,535 members each", "fanout-groups.py", false},
		{"tables", "permanent neighbours, IPv6 routes, forwarding tables, devices of 1,024 queues", "tables.sh", false},
		{"socket-queues", "TCP and UDP sockets that nobody reads", "socket-queues.py", false},
		{"inotify", "inotify instances", "inotify.py", false},
		{"signals", "timers and queued signals", "signals.py", false},
		{"aio", "asynchronous I/O events", "aio.py", false},
		{"message-queues", "POSIX message queues", "message-queues.py", false},
		{"terminals", "pseudo-terminals", "terminals.py", false},
		{"socket-filters", "socket filters of 4,096 instructions", "socket-filters.py", false},
		{"processes", "processes", "processes.py", false},
	}
}

// Select picks attacks by name, all if none is named.
func Select(names []string) ([]Attack, error) {
	all := Attacks()
	if len(names) == 0 {
		return all, nil
	}
	var picked []Attack
	var known []string
	for _, a := range all {
		known = append(known, a.Name)
	}
	for _, name := range names {
		found := false
		for _, a := range all {
			if a.Name == name {
				picked, found = append(picked, a), true
			}
		}
		if !found {
			return nil, fmt.Errorf("there is no attack %q; there are %s", name, strings.Join(known, ", "))
		}
	}
	return picked, nil
}

// command gives the argv that runs a file for so many seconds.
func command(file string, seconds int) ([]string, error) {
	b, err := files.ReadFile(file)
	if err != nil {
		return nil, err
	}
	text := strings.ReplaceAll(string(b), "SECONDS", fmt.Sprint(seconds))
	if path.Ext(file) == ".py" {
		return []string{"python3", "-c", text}, nil
	}
	return []string{"sh", "-c", text}, nil
}
