package cli

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strings"

	"trellis/internal/format"
	"trellis/internal/vnet"
)

// review is what a description asks for, for whoever is to bring up another's.
type review struct {
	VNet  string `json:"vnet"`
	Nodes int    `json:"nodes"`
	Links int    `json:"links"`
	// What all nodes together may take.
	Memory int64   `json:"memory"` // bytes
	CPU    float64 `json:"cpu"`    // cores; of nodes with a quota
	NoCPU  int     `json:"nodesWithoutCPUQuota"`
	Disk   int64   `json:"disk"` // bytes
	Pids   int     `json:"pids"`
	// Beyond the ordinary:
	Images   []reviewed `json:"images,omitempty"`       // other than the machine's own programs
	Outside  []string   `json:"outsideFiles,omitempty"` // files of this machine, from outside of the description's folder
	Commands []reviewed `json:"commands,omitempty"`     // that nodes run
	Routing  []reviewed `json:"routing,omitempty"`      // routing configurations of its own
	Files    int        `json:"files"`                  // that are placed, and their bytes
	Bytes    int64      `json:"bytes"`
	Sysctls  []reviewed `json:"sysctls,omitempty"`
	Machines []reviewed `json:"machines,omitempty"` // that nodes are placed on by name
}

// reviewed is one thing that nodes ask for, and which do.
type reviewed struct {
	What  string   `json:"what"`
	Nodes []string `json:"nodes"`
}

// reviewOf looks through a description; sources are the files that it refers to.
func reviewOf(v *vnet.VNet, sources []format.Source) *review {
	r := &review{VNet: v.Name, Nodes: len(v.Nodes), Links: len(v.Links)}
	type place struct {
		list *[]reviewed
		what string
	}
	known := map[place]int{}
	note := func(list *[]reviewed, what, node string) {
		i, ok := known[place{list, what}]
		if !ok {
			i = len(*list)
			known[place{list, what}] = i
			*list = append(*list, reviewed{What: what})
		}
		e := &(*list)[i]
		if !slices.Contains(e.Nodes[max(len(e.Nodes)-1, 0):], node) {
			e.Nodes = append(e.Nodes, node)
		}
	}
	for i := range v.Nodes {
		n := &v.Nodes[i]
		r.Memory, r.CPU, r.Disk, r.Pids = r.Memory+n.Memory, r.CPU+n.CPU, r.Disk+n.Disk, r.Pids+n.Pids
		if n.CPU == 0 {
			r.NoCPU++
		}
		if n.Image != "" && n.Image != vnet.DefaultImage {
			note(&r.Images, n.Image, n.Name)
		}
		if len(n.Cmd) > 0 {
			note(&r.Commands, strings.Join(n.Cmd, " "), n.Name)
		}
		for _, c := range n.Exec {
			note(&r.Commands, c, n.Name)
		}
		for _, f := range n.Files {
			r.Files, r.Bytes = r.Files+1, r.Bytes+int64(len(f.Content))
			if vnet.ConfiguresRouting(f.Path) {
				note(&r.Routing, fmt.Sprintf("%s (%s)", f.Path, vnet.FormatSize(int64(len(f.Content)))), n.Name)
			}
		}
		for k, value := range n.Sysctls {
			note(&r.Sysctls, k+"="+value, n.Name)
		}
		if n.On != "" {
			note(&r.Machines, n.On, n.Name)
		}
	}
	slices.SortFunc(r.Sysctls, func(a, b reviewed) int { return strings.Compare(a.What, b.What) })
	for _, s := range sources {
		if s.Outside && !slices.Contains(r.Outside, s.Path) {
			r.Outside = append(r.Outside, s.Path)
		}
	}
	return r
}

// Bounds of what is printed of one kind.
const (
	reviewLines = 20
	reviewWidth = 120 // columns of what is asked for
	reviewNodes = 5
)

// write prints the review for people. Nothing of a file steers the terminal.
func (r *review) write(w io.Writer) {
	cpu := fmt.Sprintf("%.2f cores", r.CPU)
	switch {
	case r.NoCPU == r.Nodes:
		cpu = "any share of the CPU"
	case r.NoCPU > 0:
		cpu += fmt.Sprintf(" and %s without a quota", count(r.NoCPU, "node"))
	}
	fmt.Fprintf(w, "%s: %s, %s; together up to %s of memory, %s, %s of disk, %d processes\n",
		r.VNet, count(r.Nodes, "node"), count(r.Links, "link"), vnet.FormatSize(r.Memory), cpu, vnet.FormatSize(r.Disk), r.Pids)
	ordinary := true
	section := func(title string, list []reviewed) {
		if len(list) == 0 {
			return
		}
		ordinary = false
		fmt.Fprintf(w, "%s:\n", title)
		for i, e := range list {
			if i == reviewLines {
				fmt.Fprintf(w, "  and %d more: -o json shows all\n", len(list)-i)
				break
			}
			line := "  " + clip(oneLine(e.What), reviewWidth)
			if len(e.Nodes) > 0 {
				line += "  (" + names(e.Nodes) + ")"
			}
			fmt.Fprintln(w, line)
		}
	}
	var outside []reviewed
	for _, path := range r.Outside {
		outside = append(outside, reviewed{What: path})
	}
	section("files of this machine from outside of its folder", outside)
	section("images", r.Images)
	section("commands in nodes", r.Commands)
	section("routing configurations of its own", r.Routing)
	section("kernel settings in nodes", r.Sysctls)
	section("machines by name", r.Machines)
	if r.Files > 0 {
		fmt.Fprintf(w, "it places %s in nodes, %s in all\n", count(r.Files, "file"), vnet.FormatSize(r.Bytes))
	}
	if ordinary {
		fmt.Fprintln(w, "nothing beyond the ordinary: no images, commands, routing configurations or kernel settings of its own")
	}
}

// names lists nodes, the first few by name.
func names(nodes []string) string {
	if len(nodes) <= reviewNodes {
		return strings.Join(nodes, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(nodes[:reviewNodes], ", "), len(nodes)-reviewNodes)
}

// confirm shows what a description asks for and has a person say whether to go on.
func (e *Env) confirm(r *review, file string, yes bool) error {
	r.write(e.Stderr)
	switch {
	case yes:
		return nil
	case file == stdin, terminal(e.Stdin) == nil, terminal(e.Stderr) == nil:
		fmt.Fprintln(e.Stderr, "trellis: nothing was done, since there is no terminal to ask at; --review --yes goes on after this list")
		return exitStatus(exitFailed)
	}
	fmt.Fprintf(e.Stderr, "bring %s up? [y/N] ", r.VNet)
	answer, err := bufio.NewReader(e.Stdin).ReadString('\n')
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	if err != nil {
		fmt.Fprintln(e.Stderr)
	}
	fmt.Fprintln(e.Stderr, "trellis: nothing was done")
	return exitStatus(exitFailed)
}
