package routing

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"trellis/internal/vnet"
)

// frrCheck has vtysh, which knows the commands of all daemons, read a file.
func frrCheck(p, dir string) []string {
	if p != frrIntegrated && p != frrExtra && !slices.Contains(frrOrder, frrDaemonOf(p)) {
		return nil
	}
	return []string{"/usr/bin/vtysh", "--config_dir", dir, "-C", "-f", path.Join(dir, p)}
}

// frrService names the daemon that reads a generated file.
func frrService(file string) string {
	if name := frrDaemonOf(file); name != "vtysh" {
		return name
	}
	return ""
}

// frrDaemonOf gives the daemon whose own file has that path; "" if it is none's.
func frrDaemonOf(p string) string {
	name, ok := strings.CutSuffix(path.Base(p), ".conf")
	if !ok || path.Dir(p)+"/" != frrEtc {
		return ""
	}
	return name
}

// vtyshComplaint is like "line 8: % Unknown command[17]:  ip ospf aera 0".
var vtyshComplaint = regexp.MustCompile(`^line (\d+): % (.*?)(?:\[\d+\])?:\s*(.*)$`)

func frrComplaint(line string) (Complaint, bool) {
	m := vtyshComplaint.FindStringSubmatch(line)
	if m == nil {
		return Complaint{}, false
	}
	n, _ := strconv.Atoi(m[1]) // digits; what is out of range is no line
	return Complaint{n, m[2] + ": " + m[3]}, true
}

// frrRefusal is how FRR's daemons log a line of their configuration that they do
// not understand; they go on without it.
var frrRefusal = regexp.MustCompile(`No such command on config line \d+: (.*)$`)

// frrRefused finds refused lines in the daemons' logs.
//
// A line outside of the blocks of one daemon is handed to all, and most may not
// know it: it is refused if no daemon that has it now takes it.
func frrRefused(d Daemons, own []vnet.File, logs map[string]string) string {
	type refusal struct{ service, text string }
	var found []refusal
	refused := map[refusal]bool{}
	for _, s := range d.Services {
		for line := range strings.Lines(logs[s.Name]) {
			if m := frrRefusal.FindStringSubmatch(strings.TrimRight(line, "\r\n")); m != nil {
				r := refusal{s.Name, strings.TrimSpace(m[1])}
				if !refused[r] {
					refused[r] = true
					found = append(found, r)
				}
			}
		}
	}
	for _, r := range found {
		has, taken := false, false
		for _, s := range d.Services {
			if d.configured(own, s.Name, r.text) {
				has = true
				taken = taken || !refused[refusal{s.Name, r.text}]
			}
		}
		if has && !taken {
			return fmt.Sprintf("%s refuses %s: %s", r.service, place(own, r.service, r.text), r.text)
		}
	}
	return ""
}

// configured reports whether the configuration of a daemon has a line.
func (d Daemons) configured(own []vnet.File, service, text string) bool {
	path := vnet.FRRDirectory + "/" + service + ".conf"
	for _, f := range slices.Concat(own, d.Files) {
		if f.Path == path {
			return lineOf(f.Content, text) > 0
		}
	}
	return false
}

// place says where the user has written a line: in the daemon's own file, or in
// one for all daemons.
func place(own []vnet.File, service, text string) string {
	for _, name := range []string{service + ".conf", "frr.conf", "extra.conf"} {
		for i := range own {
			if own[i].Path != vnet.FRRDirectory+"/"+name {
				continue
			}
			if n := lineOf(own[i].Content, text); n > 0 {
				return fmt.Sprintf("line %d of %s", n, own[i].Path)
			}
		}
	}
	return "a line of its configuration"
}

// lineOf gives the number of the first line of a text, whatever its indentation;
// 0: there is none.
func lineOf(content []byte, text string) int {
	n := 0
	for line := range strings.Lines(string(content)) {
		n++
		if strings.TrimSpace(line) == text {
			return n
		}
	}
	return 0
}
