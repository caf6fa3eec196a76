package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"trellis/internal/doctor"
	"trellis/internal/format"
	"trellis/internal/routing"
	"trellis/internal/vnet"
)

// stdin stands for standard input where a verb takes a file.
const stdin = "-"

// load reads a description of a network and tells its warnings. Whatever is
// wrong with it is an input error.
func (e *Env) load(path string, o ...format.Options) (*vnet.VNet, error) {
	v, warnings, err := e.read(path, o...)
	for _, w := range warnings {
		fmt.Fprintln(e.Stderr, w)
	}
	if err != nil {
		return nil, &inputError{err}
	}
	return v, nil
}

func (e *Env) read(path string, o ...format.Options) (*vnet.VNet, []format.Warning, error) {
	if path != stdin {
		return format.Load(path, o...)
	}
	data, err := io.ReadAll(io.LimitReader(e.Stdin, format.MaxFile+1))
	if err != nil {
		return nil, nil, fmt.Errorf("standard input: %w", err)
	}
	return format.Read("standard input", data, nil, o...)
}

// isFile reports whether the argument of a verb that takes VNET or FILE is a
// file: the name of a network has neither dots nor slashes.
func isFile(arg string) bool {
	if arg == stdin || strings.ContainsAny(arg, "./") {
		return true
	}
	info, err := os.Stat(arg)
	return err == nil && info.Mode().IsRegular()
}

// setFlag adds --set, which overrides what a file says.
func setFlag(cmd *cobra.Command) *[]string {
	return cmd.Flags().StringArray("set", nil, "override `KEY=VALUE` of the file, any key of the native format, as routing.protocol=static; repeatable")
}

// allowPathFlag adds --allow-path, which lets descriptions refer to files elsewhere.
func allowPathFlag(cmd *cobra.Command) *[]string {
	paths := cmd.Flags().StringArray("allow-path", nil, "let the file place files from below `DIR` into nodes, too, and not only from its own folder; repeatable")
	if err := cmd.MarkFlagDirname("allow-path"); err != nil {
		panic(err) // the flag was added one line above
	}
	return paths
}

// anyPath is for verbs that let no content of files out of their own process.
var anyPath = format.Options{AllowPaths: []string{"/"}}

// machine gives what this machine has of what not all have.
func (e *Env) machine() (*vnet.Machine, error) {
	dir := e.stateDir()
	if dir == "" {
		dir = defaultStateDir
	}
	facts, err := doctor.Gather(dir)
	if err != nil {
		return nil, err
	}
	if !facts.Root {
		return nil, errors.New("what this machine can do is tried out, which takes root: use sudo")
	}
	m := &vnet.Machine{Netem: facts.Probes[doctor.ProbeNetem] == nil, Programs: map[string]bool{}, Sysctls: doctor.TrySysctls, Calls: routing.CalledFor}
	for name := range facts.Daemons {
		m.Programs[name] = true
	}
	return m, nil
}

// leaveOut takes out of a network what this machine lacks, and reports it.
func (e *Env) leaveOut(v *vnet.VNet) error {
	if strings.HasPrefix(e.Address, "http") {
		return usagef("--partial knows what this machine lacks, and %s may be another; leave --address or --partial out", e.Address)
	}
	m, err := e.machine()
	if err != nil {
		return err
	}
	for _, what := range v.LeaveOut(*m) {
		fmt.Fprintf(e.Stderr, "left out: %s\n", what)
	}
	return nil
}
