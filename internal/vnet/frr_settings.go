package vnet

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// FRRSettingsPath is where Debian's FRR is told which daemons to start, and how.
const FRRSettingsPath = FRRDirectory + "/daemons"

// FRRDaemons lists FRR's daemons in starting order: from FRR 10 on mgmtd has the
// configuration of zebra, staticd, ripd and ripngd, and all others need zebra.
var FRRDaemons = []string{
	"mgmtd", "zebra", "staticd", "ospfd", "ospf6d", "isisd", "bgpd", "ripd", "ripngd",
	"bfdd", "pimd", "pim6d", "ldpd", "nhrpd", "eigrpd", "babeld", "pbrd", "fabricd", "vrrpd", "pathd",
}

// FRRSettings is what [FRRSettingsPath] says, as FRR's frrcommon.sh reads it.
type FRRSettings struct {
	Enabled   map[string]bool     // of daemons that a line names: yes or no
	Options   map[string][]string // further arguments, by daemon
	Instances map[string][]string // numbers of instances, by daemon; none: one without a number
	Global    []string            // further arguments of every daemon
	Profile   string              // of defaults: traditional or datacenter; empty: FRR's own
	MaxFDs    int                 // file descriptors of a daemon; 0: not said
}

var (
	frrAssignment = regexp.MustCompile(`^(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)=("[^"]*"|'[^']*'|[^\s"'#;]*)\s*;?\s*(?:#.*)?$`)
	frrInstance   = regexp.MustCompile(`^[1-9][0-9]{0,4}$`)
)

// maxFRRInstance is the highest number of an instance.
const maxFRRInstance = 65535

// frrMultiple are the daemons that have instances.
var frrMultiple = []string{"ospfd"}

// FRRSettingsError says what is wrong with a line.
type FRRSettingsError struct {
	Line         int // from 1
	What, Remedy string
}

// ParseFRRSettings reads settings. Lines that only concern what is not done here, such
// as watchfrr's, are passed over.
func ParseFRRSettings(text string) (FRRSettings, []FRRSettingsError) {
	s := FRRSettings{Enabled: map[string]bool{}, Options: map[string][]string{}, Instances: map[string][]string{}}
	var errs []FRRSettingsError
	number := 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		m := frrAssignment.FindStringSubmatch(line)
		if m == nil || strings.Contains(m[2], "$") || strings.Contains(m[2], "`") {
			errs = append(errs, FRRSettingsError{number, fmt.Sprintf("%q is no NAME=VALUE", clip(line)), "write lines like bgpd=yes or bgpd_options=\"-A 127.0.0.1\""})
			continue
		}
		if what, remedy := s.set(m[1], strings.Trim(m[2], `"'`)); what != "" {
			errs = append(errs, FRRSettingsError{number, what, remedy})
		}
	}
	return s, errs
}

// set takes one line. What is wrong with it is empty where it is right.
func (s *FRRSettings) set(name, value string) (what, remedy string) {
	words := strings.Fields(value)
	daemon, key, _ := strings.Cut(name, "_")
	known := slices.Contains(FRRDaemons, daemon)
	switch {
	case known && name == daemon:
		s.Enabled[daemon] = value != "" && value != "no" && value != "0"
	case name == "frr_global_options":
		s.Global = words
		return frrOptions(name, words)
	case name == "frr_profile":
		s.Profile = value
		if value != "" && value != "traditional" && value != "datacenter" {
			return fmt.Sprintf("FRR has no profile %q", clip(value)), "use traditional or datacenter"
		}
	case name == "MAX_FDS":
		n, err := strconv.Atoi(value)
		if s.MaxFDs = n; err != nil || n < 64 || n > 1<<20 {
			return fmt.Sprintf("MAX_FDS is %q", clip(value)), "use a number from 64 to 1048576"
		}
	case known && key == "options":
		s.Options[daemon] = words
		return frrOptions(name, words)
	case known && key == "instances":
		return s.instances(daemon, value)
	case name == "all_wrap" || known && key == "wrap", name == "valgrind_enable" && value != "no", name == "FRR_PATHSPACE", name == "FRR_CONFIG_MODE", name == "FRR_USER", name == "FRR_GROUP":
		if value != "" {
			return name + " is not supported: a node's daemons run by themselves", "leave the line out"
		}
	}
	return "", ""
}

func (s *FRRSettings) instances(daemon, value string) (what, remedy string) {
	list := strings.FieldsFunc(value, func(r rune) bool { return r == ',' || r == ' ' || r == '\t' })
	if len(list) > 0 && !slices.Contains(frrMultiple, daemon) {
		return daemon + " has no instances", "leave the line out: of FRR's daemons " + strings.Join(frrMultiple, ", ") + " has them"
	}
	for i, n := range list {
		if v, err := strconv.Atoi(n); !frrInstance.MatchString(n) || err != nil || v > maxFRRInstance || slices.Contains(list[:i], n) {
			return fmt.Sprintf("instance %q of %s", clip(n), daemon), fmt.Sprintf("use numbers from 1 to %d, each once", maxFRRInstance)
		}
	}
	s.Instances[daemon] = list
	return "", ""
}

// frrTaken are options that Trellis gives itself, since a node depends on them.
var frrTaken = []string{"-d", "--daemon", "-i", "--pid_file", "-z", "--socket", "-N", "--pathspace", "--vty_socket", "-u", "--user", "-g", "--group", "-f", "--config_file", "--instance", "--log"}

func frrOptions(name string, words []string) (what, remedy string) {
	for _, w := range words {
		if option, _, _ := strings.Cut(w, "="); slices.Contains(frrTaken, option) || option == "-n" && slices.Contains(frrMultiple, strings.TrimSuffix(name, "_options")) {
			return fmt.Sprintf("%s has %s, which Trellis gives itself", name, clip(w)), "leave that option out"
		}
	}
	return "", ""
}
