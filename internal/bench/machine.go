package bench

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Machine is what a measurement ran on.
type Machine struct {
	CPU    string `json:"cpu"`    // model
	Cores  int    `json:"cores"`  // that this process may use
	Memory int64  `json:"memory"` // bytes
	Kernel string `json:"kernel"`
	Arch   string `json:"arch"`
	System string `json:"system"` // distribution
	// Versions of the programs that networks are made of, by name; "not
	// installed" where there is none.
	Versions map[string]string `json:"versions"`
	Time     time.Time         `json:"time"`
	// Load is the one-minute load average at the start: above a few tenths,
	// something else was running.
	Load float64 `json:"load"`
}

// ReadMachine describes this machine.
func ReadMachine(ctx context.Context) (Machine, error) {
	m := Machine{Cores: runtime.NumCPU(), Arch: runtime.GOARCH, Time: time.Now().UTC().Truncate(time.Second)}
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return m, fmt.Errorf("read the processor's model: %w", err)
	}
	m.CPU = cpuModel(string(info))
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return m, fmt.Errorf("read the kernel's version: %w", err)
	}
	m.Kernel = unix.ByteSliceToString(u.Release[:])
	mem, err := readMeminfo()
	if err != nil {
		return m, err
	}
	m.Memory = mem.total
	if m.System, err = systemName(); err != nil {
		return m, err
	}
	if m.Load, err = LoadAverage(); err != nil {
		return m, err
	}
	m.Versions = map[string]string{
		"crun": version(ctx, "crun", "--version"),
		"frr":  version(ctx, "/usr/lib/frr/zebra", "--version"),
		"bird": version(ctx, "bird", "--version"),
	}
	return m, nil
}

// cpuModel finds the processor's name in /proc/cpuinfo, which spells it
// differently on each architecture, and not at all on some.
func cpuModel(info string) string {
	for _, key := range []string{"model name", "Model", "Hardware", "CPU implementer"} {
		for line := range strings.Lines(info) {
			if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == key {
				return strings.TrimSpace(v)
			}
		}
	}
	return "unknown"
}

// systemName gives the distribution's name (os-release(5)).
func systemName() (string, error) {
	text, err := os.ReadFile("/etc/os-release")
	if os.IsNotExist(err) {
		return "unknown", nil
	} else if err != nil {
		return "", fmt.Errorf("read the distribution's name: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(line, "PRETTY_NAME="); ok {
			return strings.Trim(strings.TrimSpace(v), `"'`), nil
		}
	}
	return "unknown", nil
}

// version gives the first line that a program says of its version.
func version(ctx context.Context, program string, args ...string) string {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	// Some write it to standard error.
	out, err := exec.CommandContext(ctx, program, args...).CombinedOutput()
	if err != nil {
		return "not installed"
	}
	line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	return line
}

// String is the machine in one line, for tables.
func (m Machine) String() string {
	return fmt.Sprintf("%s, %d cores, %.1f GiB, Linux %s, %s; %s; %s",
		m.CPU, m.Cores, float64(m.Memory)/(1<<30), m.Kernel, m.System, m.Versions["crun"], m.Versions["frr"])
}
