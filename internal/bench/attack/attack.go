// Package attack tries what a node's root can do to take the machine, or other networks',
// share of it: each attack of docs/security.md, from a node of small limits, for some
// seconds, while another network sends, and verbs are run. It measures what the machine
// and the others lose.
//
// Each attack stops by itself, and takes no more than some hundreds of MiB or some
// thousands of things; what takes more of the machine's memory is ended. So a machine
// survives an attack that is not held.
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
	// files are its programs, below scripts. A node runs so many of them at once, each
	// node the next ones; 0: all of them.
	files  []string
	atOnce int
	nodes  int // that do it, in networks of five; 0: one node of a network of two
}

// programs are those that the i-th node of an attack runs at once.
func (a Attack) programs(i int) []string {
	if a.atOnce == 0 {
		return a.files
	}
	var picked []string
	for j := range a.atOnce {
		picked = append(picked, a.files[(i+j)%len(a.files)])
	}
	return picked
}

// memory are the programs by which a node has the kernel hold memory for it that no
// limit charges.
var memory = []string{"packet-rings.py", "device-queues.sh", "netlink-queues.py", "fragments.py", "fanout-groups.py", "tables.sh", "classes.py", "routes.py", "socket-queues.py"}

//go:embed scripts probes
var files embed.FS

// Attacks are all there are.
func Attacks() []Attack {
	return []Attack{
		{Name: "loop-bridges", What: "packets circle between two bridges of a node", files: []string{"loop-bridges.sh"}},
		{Name: "loop-links", What: "packets circle over two links that two nodes bridge", files: []string{"loop-links.sh"}, nodes: 2},
		{Name: "packet-rings", What: "rings of packet sockets, 512 MiB", files: []string{"packet-rings.py"}},
		{Name: "device-queues", What: "packets wait in a queue of 2 GB", files: []string{"device-queues.sh"}},
		{Name: "netlink-queues", What: "messages that nobody reads, of 20,000 netlink sockets", files: []string{"netlink-queues.py"}},
		{Name: "fragments", What: "fragments of packets that never come, the limit raised", files: []string{"fragments.py"}},
		{Name: "fanout-groups", What: "900 groups of packet sockets, for 65,535 members each", files: []string{"fanout-groups.py"}},
		{Name: "tables", What: "permanent neighbours, IPv6 routes, forwarding tables, devices of 1,024 queues", files: []string{"tables.sh"}},
		{Name: "classes", What: "classes of queueing disciplines", files: []string{"classes.py"}},
		{Name: "neighbours", What: "the neighbour table, which all nodes share", files: []string{"neighbours.py"}},
		{Name: "routes", What: "IPv4 routes that share no nexthop", files: []string{"routes.py"}},
		{Name: "socket-queues", What: "TCP and UDP sockets that nobody reads", files: []string{"socket-queues.py"}},
		{Name: "inotify", What: "inotify instances", files: []string{"inotify.py"}},
		{Name: "signals", What: "timers and queued signals", files: []string{"signals.py"}},
		{Name: "aio", What: "asynchronous I/O events", files: []string{"aio.py"}},
		{Name: "message-queues", What: "POSIX message queues", files: []string{"message-queues.py"}},
		{Name: "terminals", What: "pseudo-terminals", files: []string{"terminals.py"}},
		{Name: "socket-filters", What: "socket filters of 4,096 instructions", files: []string{"socket-filters.py"}},
		{Name: "filters", What: "classic BPF in filters of traffic control", files: []string{"filters.py"}},
		{Name: "processes", What: "processes", files: []string{"processes.py"}},
		{Name: "all", What: "all that is memory, by ten nodes, three at once in each", files: memory, atOnce: 3, nodes: 10},
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

// Command gives the argv that has a node make an attack of one program for so many
// seconds.
func Command(name string, seconds int) ([]string, error) {
	picked, err := Select([]string{name})
	if err != nil {
		return nil, err
	}
	return picked[0].command(0, seconds)
}

// command gives the argv by which the i-th node makes the attack.
func (a Attack) command(i, seconds int) ([]string, error) {
	programs := a.programs(i)
	if len(programs) == 1 {
		return command("scripts/"+programs[0], seconds)
	}
	// The shell has each program as an argument, and starts all.
	var start strings.Builder
	var texts []string
	for n, file := range programs {
		argv, err := command("scripts/"+file, seconds)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&start, "%s -c \"$%d\" & ", argv[0], n+1)
		texts = append(texts, argv[2])
	}
	return append([]string{"sh", "-c", start.String() + "wait", "sh"}, texts...), nil
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
