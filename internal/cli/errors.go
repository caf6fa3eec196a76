package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"trellis/internal/vnet"
)

// Exit statuses of the program.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

// usageError is a mistake in the command line.
type usageError struct{ msg string }

func (e *usageError) Error() string { return e.msg }

func usagef(format string, args ...any) error {
	return &usageError{fmt.Sprintf(format, args...)}
}

// inputError is a mistake in a file. Its text is lines of the form
// "FILE:LINE: what; remedy", which editors and scripts read, so it is printed
// without a prefix.
type inputError struct{ err error }

func (e *inputError) Error() string { return e.err.Error() }
func (e *inputError) Unwrap() error { return e.err }

// exitStatus ends the program with a status and no message: everything has
// been said, or the status is that of a command in a node.
type exitStatus int

func (e exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// report writes err for a person and returns the exit status that it means.
func report(env *Env, cmd *cobra.Command, err error) int {
	if err == nil {
		return exitDone
	}
	var status exitStatus
	if errors.As(err, &status) {
		return int(status)
	}
	var input *inputError
	if errors.As(err, &input) {
		fmt.Fprintln(env.Stderr, strings.TrimRight(input.Error(), "\n"))
		return exitUsage
	}
	var usage *usageError
	code := exitFailed
	if errors.As(err, &usage) || isInvalidArgument(err) {
		code = exitUsage
	}
	text := describe(env, err)
	fmt.Fprintf(env.Stderr, "trellis: %s\n", strings.TrimRight(text, "\n"))
	return code
}

// exactly returns a check that exactly the named arguments are present.
func exactly(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < len(names):
			return usagef("%s needs %s; see `%s --help`", verb(cmd), strings.Join(names[len(args):], " and "), cmd.CommandPath())
		case len(args) > len(names):
			return usagef("%s takes no argument %q here; see `%s --help`", verb(cmd), args[len(names)], cmd.CommandPath())
		}
		return nil
	}
}

// between takes the named arguments, of which those after the first least may be left out.
func between(least int, names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		return exactly(names[:min(max(least, len(args)), len(names))]...)(cmd, args)
	}
}

// verbsOnly is the check of a command that has verbs below it and takes none but
// those.
func verbsOnly(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var names []string
	for _, c := range cmd.Commands() {
		if !c.Hidden {
			names = append(append(names, c.Name()), c.Aliases...)
		}
	}
	hint := ""
	if near := vnet.Nearest(args[0], names); near != "" {
		hint = fmt.Sprintf("did you mean %q? ", near)
	}
	called := strings.TrimPrefix(cmd.CommandPath()+" "+args[0], cmd.Root().Name()+" ")
	return usagef("unknown verb %q; %s`%s --help` lists the verbs", called, hint, cmd.CommandPath())
}

// nearestFlag is a hint at the flag that a mistyped one most likely means; else
// it is empty.
func nearestFlag(cmd *cobra.Command, err error) string {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) || unknown.GetSpecifiedShortnames() != "" {
		return ""
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	if near := vnet.Nearest(unknown.GetSpecifiedName(), names); near != "" {
		return fmt.Sprintf("did you mean --%s? ", near)
	}
	return ""
}

// verb names a command without the program: "link set".
func verb(cmd *cobra.Command) string {
	return strings.TrimPrefix(cmd.CommandPath(), cmd.Root().Name()+" ")
}
