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
	if p != frrIntegrated && p != frrExtra && !slices.Contains(vnet.FRRDaemons, frrDaemonOf(p)) {
		return nil
	}
	return []string{"/usr/bin/vtysh", "--config_dir", dir, "-C", "-f", path.Join(dir, p)}
}

// frrReaders names the daemons that a file is for: its own, or all that vtysh loads.
func frrReaders(file string, services []Service) []string {
	name := frrDaemonOf(file)
	var readers []string
	for _, s := range services {
		loaded := s.Ready != "" && (file == frrIntegrated || file == frrExtra)
		if loaded || s.Ready == "" && !s.Loads && s.Name == name {
			readers = append(readers, s.Name)
		}
	}
	return readers
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

// vtyshRefusal is how vtysh says that a daemon does not take a line that it loads:
// "line 19: Failure to communicate[13] to bgpd, line:  neighbor 300.1.1.1 remote-as 4".
var vtyshRefusal = regexp.MustCompile(`^line \d+: Failure to communicate\[\d+\] to ([^,]+), line:\s*(.*)$`)

// refusedByVtysh finds the first line that vtysh, or a daemon through it, has refused
// of what the user's files have now: its log outlives the configuration that it is of.
func refusedByVtysh(own []vnet.File, log string) string {
	for line := range strings.Lines(log) {
		line = strings.TrimSpace(line)
		who, text := "vtysh", ""
		if m := vtyshRefusal.FindStringSubmatch(line); m != nil {
			who, text = m[1], strings.TrimSpace(m[2])
		} else if m := vtyshComplaint.FindStringSubmatch(line); m != nil {
			text = m[3]
		}
		if text == "" {
			continue
		}
		if at, ok := placeOf(own, text, "frr.conf", "extra.conf"); ok {
			return fmt.Sprintf("%s refuses %s: %s", who, at, text)
		}
	}
	return ""
}

// frrRefused finds refused lines in the daemons' logs.
//
// A line outside of the blocks of one daemon is handed to all, and most may not
// know it: it is refused if no daemon that has it now takes it.
func frrRefused(d Daemons, own []vnet.File, logs map[string]string) string {
	if why := refusedByVtysh(own, logs[frrLoader]); why != "" {
		return why
	}
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
			if _, runs := logs[s.Name]; s.Optional && !runs {
				continue
			}
			if d.configured(own, s.Name, r.text) {
				has = true
				taken = taken || !refused[refusal{s.Name, r.text}]
			}
		}
		at, theirs := place(own, r.service, r.text)
		if has && !taken && theirs {
			return fmt.Sprintf("%s refuses %s: %s", r.service, at, r.text)
		}
	}
	return ""
}

// configured reports whether the configuration of a daemon has a line.
func (d Daemons) configured(own []vnet.File, service, text string) bool {
	has := func(name string) (is, line bool) {
		for _, f := range slices.Concat(own, d.Files) {
			if f.Path == frrEtc+name+".conf" {
				return true, lineOf(f.Content, text) > 0
			}
		}
		return false, false
	}
	names := []string{service}
	switch service {
	case "staticd": // without a file of its own it reads zebra's
		names = append(names, "zebra")
	case "mgmtd": // from FRR 10 on it reads those of the daemons whose configuration it has
		names = []string{"zebra", "ripd", "ripngd", "staticd"}
		return slices.ContainsFunc(names, func(name string) bool { _, line := has(name); return line })
	}
	for _, name := range names {
		if is, line := has(name); is {
			return line
		}
	}
	return false
}

// place says where the user has written a line: in the daemon's own file, or in
// one for all daemons.
func place(own []vnet.File, service, text string) (string, bool) {
	names := []string{service + ".conf", "frr.conf", "extra.conf"}
	if service == "mgmtd" || service == "staticd" {
		names = append(names, "zebra.conf", "ripd.conf", "ripngd.conf", "staticd.conf")
	}
	return placeOf(own, text, names...)
}

// placeOf finds a line in the first of the files of FRR's that has it.
func placeOf(own []vnet.File, text string, names ...string) (string, bool) {
	for _, name := range names {
		for i := range own {
			if own[i].Path != frrEtc+name {
				continue
			}
			if n := lineOf(own[i].Content, text); n > 0 {
				return fmt.Sprintf("line %d of %s", n, own[i].Path), true
			}
		}
	}
	return "", false
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
