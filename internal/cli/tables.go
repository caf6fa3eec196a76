package cli

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

func (v *networkView) table(w io.Writer) {
	up := 0
	for _, n := range v.Nodes {
		if n.State == "running" {
			up++
		}
	}
	fmt.Fprintf(w, "%s: %s, routing %s, %d of %s up, %s\n", v.Name, v.State, v.Routing, up, count(len(v.Nodes), "node"), count(len(v.Links), "link"))
	if v.Message != "" {
		fmt.Fprintln(w, v.Message)
	}
	for _, m := range v.Missing {
		fmt.Fprintln(w, m)
	}
	var ends []ifaceView
	drops, exits := newDrops(), newExits()
	for _, l := range v.Links {
		ends = append(ends, l.Ends...)
		for _, e := range l.Ends {
			drops.count(e.Node+":"+e.Name, e.DropsByReason)
			exits.count(e.Node+":"+e.Name, e.StackByReason)
		}
		for _, t := range l.Tunnels {
			drops.count(fmt.Sprintf("%s, %s to %s", l.Name, t.Host, t.Peer), t.DropsByReason)
		}
	}
	v.nodes().section(w)
	v.links(anyFast(ends)).section(w)
	v.paths().section(w)
	exits.section(w)
	drops.section(w)
}

// nodes lists the nodes. Whether the fast path is on is told where there is one.
func (v *networkView) nodes() *table {
	fast := slices.ContainsFunc(v.Nodes, func(n nodeView) bool { return n.FastPath != "" })
	head := []string{"NODE", "STATE", "HOST", "LOOPBACKS", ">RESTARTS", ">MEMORY", ">CPU", "MESSAGE"}
	if fast {
		head = slices.Insert(head, len(head)-1, "FAST PATH")
	}
	display := slices.ContainsFunc(v.Nodes, func(n nodeView) bool { return n.Display != "" })
	if display {
		head = slices.Insert(head, 1, "DISPLAY")
	}
	t := newTable(head...)
	for _, n := range v.Nodes {
		row := []string{n.Name, n.State, dash(n.Host), strings.Join(n.Loopbacks, " "), fmt.Sprint(n.Restarts), size(n.Memory),
			fmt.Sprintf("%.2fs", n.CPUSeconds)}
		if display {
			row = slices.Insert(row, 1, cmp.Or(n.Display, n.Name))
		}
		if fast {
			word, _, _ := strings.Cut(n.FastPath, ":")
			row = append(row, dash(word))
		}
		t.add(append(row, n.Message)...)
	}
	return t
}

func (v *networkView) links(fast bool) *table {
	head := []string{"LINK", "TYPE", "STATE", "ENDS", "SHAPE", ">PACKETS", ">DROPS", "MESSAGE"}
	if fast {
		head = slices.Insert(head, 6, ">FAST")
	}
	t := newTable(head...)
	for _, l := range v.Links {
		var ends, shapes []string
		var packets, fastPackets, drops uint64
		for _, e := range l.Ends {
			end := e.Node + ":" + e.Name
			if e.Down {
				end += "(down)"
			}
			ends = append(ends, end)
			shapes = append(shapes, e.Shape.String())
			packets += e.TxPackets
			fastPackets += e.TxFastPackets
			drops += e.Drops
		}
		row := []string{l.Name, l.Type, l.State, strings.Join(ends, " "), distinct(shapes), fmt.Sprint(packets)}
		if fast {
			row = append(row, share(fastPackets, packets))
		}
		t.add(append(row, fmt.Sprint(drops), l.Message)...)
	}
	return t
}

// paths lists the links that go on at other substrate nodes, once for each pair:
// the narrower MTU and the worse state of what the two ends see.
func (v *networkView) paths() *table {
	t := newTable("PATH OF", "BETWEEN", ">KEY", ">MTU", "STATE", "MESSAGE")
	for _, l := range v.Links {
		type pair [2]string
		paths := map[pair]pathView{}
		for _, e := range l.Ends {
			for _, p := range e.Paths {
				between := pair{min(e.Host, p.Peer), max(e.Host, p.Peer)}
				path, both := paths[between]
				if !both {
					paths[between] = p
					continue
				}
				if p.MTU != 0 && (path.MTU == 0 || p.MTU < path.MTU) {
					path.MTU = p.MTU
				}
				if path.State == "up" && (p.State != "up" || path.Message == "") {
					path.State, path.Message = p.State, p.Message
				}
				paths[between] = path
			}
		}
		for _, between := range slices.SortedFunc(maps.Keys(paths), func(a, b pair) int { return slices.Compare(a[:], b[:]) }) {
			p := paths[between]
			t.add(l.Name, strings.Join(between[:], " "), fmt.Sprintf("%08x", p.Key), known(p.MTU), p.State, p.Message)
		}
	}
	return t
}

func (v *nodeView) table(w io.Writer) {
	fmt.Fprintf(w, "%s/%s: %s\n", v.VNet, v.Name, v.State)
	if v.Message != "" {
		fmt.Fprintln(w, v.Message)
	}
	for _, m := range v.Missing {
		fmt.Fprintln(w, m)
	}
	fmt.Fprintln(w)
	facts := newTable("", "")
	fact := func(name, value string) {
		if value != "" {
			facts.add(name, value)
		}
	}
	fact("display", v.Display)
	fact("kind", v.Kind)
	fact("loopbacks", strings.Join(v.Loopbacks, " "))
	fact("routing", v.Routing)
	fact("router id", v.RouterID)
	if v.ASN != 0 {
		fact("AS", fmt.Sprint(v.ASN))
	}
	fact("image", v.Image)
	fact("host", v.Host)
	if v.PID != 0 {
		fact("pid", fmt.Sprint(v.PID))
	}
	fact("fast path", v.FastPath)
	fact("restarts", fmt.Sprint(v.Restarts))
	if v.Repairs > 0 {
		fact("repairs", fmt.Sprint(v.Repairs))
	}
	fact("memory", size(v.Memory)+v.Limits.of(size(v.Limits.Memory), v.Limits.Memory != 0))
	fact("cpu", fmt.Sprintf("%.2fs used", v.CPUSeconds)+v.Limits.of(fmt.Sprintf("%g cores", v.Limits.CPU), v.Limits.CPU != 0))
	if v.Limits.Pids != 0 {
		fact("processes", fmt.Sprintf("at most %d", v.Limits.Pids))
	}
	if v.Limits.Disk != 0 {
		fact("disk", "at most "+size(v.Limits.Disk))
	}
	facts.write(w)
	services := newTable("SERVICE", "STATE", ">PID", ">RESTARTS")
	for _, s := range v.Services {
		services.add(s.Name, s.State, fmt.Sprint(s.PID), fmt.Sprint(s.Restarts))
	}
	services.section(w)
	v.interfaces().section(w)
	drops, exits := newDrops(), newExits()
	for _, i := range v.Interfaces {
		drops.count(i.Name, i.DropsByReason)
		exits.count(i.Name, i.StackByReason)
	}
	exits.section(w)
	drops.section(w)
	tablePaths(w, v.Interfaces)
}

// interfaces lists the node's interfaces. What took the fast path is a part of
// what was received and sent.
func (v *nodeView) interfaces() *table {
	fast := v.FastPath != "" || anyFast(v.Interfaces)
	head := []string{"INTERFACE", "LINK", "ADDRESSES", ">MTU", "SENDS AT", ">RX", ">TX", ">DROPS", "DEVICE"}
	if fast {
		head = []string{"INTERFACE", "LINK", "ADDRESSES", ">MTU", "SENDS AT", ">RX", ">RX FAST", ">TX", ">TX FAST", ">DROPS", "DEVICE"}
	}
	t := newTable(head...)
	for _, i := range v.Interfaces {
		link := i.Link
		if i.Down {
			link += " (down)"
		}
		row := []string{i.Name, link, strings.Join(i.Addrs, " "), fmt.Sprint(i.MTU), i.Shape.String(), fmt.Sprint(i.RxPackets)}
		if fast {
			row = append(row, share(i.RxFastPackets, i.RxPackets))
		}
		row = append(row, fmt.Sprint(i.TxPackets))
		if fast {
			row = append(row, share(i.TxFastPackets, i.TxPackets))
		}
		t.add(append(row, fmt.Sprint(i.Drops), i.Device)...)
	}
	return t
}

// anyFast reports whether any packet took the fast path.
func anyFast(ends []ifaceView) bool {
	return slices.ContainsFunc(ends, func(e ifaceView) bool { return e.RxFastPackets+e.TxFastPackets > 0 })
}

// share writes a part of a whole in percent: all is "100%", and nothing "0%".
func share(part, whole uint64) string {
	switch {
	case whole == 0:
		return "-"
	case part >= whole:
		return "100%"
	case part == 0:
		return "0%"
	}
	return fmt.Sprintf("%d%%", min(max(part*100/whole, 1), 99))
}

// reasons lists packets by the reasons that they were counted for, where there
// were any.
type reasons struct{ *table }

// newDrops lists what was dropped.
func newDrops() reasons { return reasons{newTable("DROPS AT", "REASON", ">PACKETS")} }

// newExits lists what left the fast path for a node's stack.
func newExits() reasons { return reasons{newTable("TO THE STACK AT", "REASON", ">PACKETS")} }

func (d reasons) count(at string, by map[string]uint64) {
	for _, reason := range slices.Sorted(maps.Keys(by)) {
		d.add(at, reason, fmt.Sprint(by[reason]))
	}
}

// tablePaths lists the ways of interfaces across the underlay.
func tablePaths(w io.Writer, ends []ifaceView) {
	t := newTable("PATH OF", "TO", "ADDRESS", ">KEY", ">MTU", "STATE", "MESSAGE")
	for _, e := range ends {
		for _, p := range e.Paths {
			t.add(e.Name, p.Peer, p.Remote, fmt.Sprintf("%08x", p.Key), known(p.MTU), p.State, p.Message)
		}
	}
	t.section(w)
}

// known writes a number, or a dash for none.
func known(n int) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprint(n)
}
