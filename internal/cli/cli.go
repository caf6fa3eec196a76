// Package cli holds the verbs of the trellis command: it reads arguments and
// files, talks to the service through its API, and writes tables, JSON, YAML,
// drawings and progress.
//
// One file holds one verb, made by a constructor newXCommand(*Env). Results go
// to standard output, everything else to standard error. The exit status is 0
// when the verb did what it says, 1 when it could not, 2 when the command line
// or a file given to it is wrong, and for exec and console the status of the
// command that ran in the node.
package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// Environment variables that stand in for flags.
const (
	envAddress  = "TRELLIS_ADDRESS"
	envRunDir   = "TRELLIS_RUN_DIR"
	envStateDir = "TRELLIS_STATE_DIR"
)

// Directories of the machine's own instance of the service.
const (
	defaultRunDir   = "/run/trellis"
	defaultStateDir = "/var/lib/trellis"
)

// Env is what a verb may touch: its streams, the address of the service, and
// how a service is started. Tests give their own.
type Env struct {
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer

	// Address names the service: unix:///path, a path, or http://host:port.
	// Empty means the socket in RunDir.
	Address string
	// RunDir is the directory of the service's socket.
	RunDir string

	// start runs a service in the background and returns when it answers.
	// It is set only for a user who may do that.
	start func(context.Context, *Env) error
	// stop ends the service that start started.
	stop func(*Env) error
}

// Main runs the command line args (without the program's name) and returns the
// exit status.
func Main(args []string) int {
	env := &Env{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}
	if os.Geteuid() == 0 {
		env.start, env.stop = startService, stopService
	}
	return run(env, args)
}

// run is Main with the streams given.
func run(env *Env, args []string) int {
	root := newRootCommand(env)
	root.SetArgs(args)
	root.SetIn(env.Stdin)
	root.SetOut(env.Stdout)
	root.SetErr(env.Stderr)
	cmd, err := root.ExecuteContextC(context.Background())
	return report(env, cmd, err)
}

// newRootCommand builds the whole command tree.
func newRootCommand(env *Env) *cobra.Command {
	root := &cobra.Command{
		Use:   "trellis",
		Short: "Host isolated virtual networks of container routers",
		Long: `Trellis hosts many isolated virtual networks on Linux machines: each node a
container with its own kernel network stack and routing software, each link with
its own rate, delay and loss.

The verbs talk to the service, ` + "`trellis serve`" + `. With none running, ` + "`trellis up`" + `
starts one in the background when root runs it.`,
		Example: `  trellis up examples/abilene.yaml
  trellis exec abilene/denver -- vtysh -c "show ip route"
  trellis graph abilene -w abilene.svg
  trellis down abilene`,
		SilenceUsage:      true,
		SilenceErrors:     true,
		Args:              verbsOnly,
		RunE:              func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	cobra.EnableCommandSorting = false // the order of commands says what comes first
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usagef("%v; %ssee `%s --help`", err, nearestFlag(cmd, err), cmd.CommandPath())
	})
	flags := root.PersistentFlags()
	flags.StringVar(&env.Address, "address", os.Getenv(envAddress),
		"service to talk to: unix:///path or http://host:port (default: the socket in the run directory; $"+envAddress+")")
	flags.StringVar(&env.RunDir, "run-dir", envOr(envRunDir, defaultRunDir),
		"directory of the service's socket ($"+envRunDir+")")

	root.AddGroup(
		&cobra.Group{ID: groupNetworks, Title: "Virtual networks:"},
		&cobra.Group{ID: groupInside, Title: "Inside a network:"},
		&cobra.Group{ID: groupFiles, Title: "Files and drawings:"},
		&cobra.Group{ID: groupMachine, Title: "This machine:"},
	)
	for _, c := range commands {
		cmd := c.new(env)
		cmd.GroupID = c.group
		root.AddCommand(cmd)
	}
	root.SetHelpCommandGroupID(groupMachine)
	return root
}

// Groups of verbs in the help text.
const (
	groupNetworks = "networks"
	groupInside   = "inside"
	groupFiles    = "files"
	groupMachine  = "machine"
)

// commands lists the verbs in the order of the help text.
var commands = []struct {
	group string
	new   func(*Env) *cobra.Command
}{
	{groupNetworks, newUpCommand},
	{groupNetworks, newDownCommand},
	{groupNetworks, newLsCommand},
	{groupNetworks, newShowCommand},
	{groupInside, newExecCommand},
	{groupInside, newConsoleCommand},
	{groupInside, newLogsCommand},
	{groupInside, newRestartCommand},
	{groupInside, newStopCommand},
	{groupInside, newStartCommand},
	{groupInside, newPingCommand},
	{groupInside, newLinkCommand},
	{groupInside, newCaptureCommand},
	{groupFiles, newGraphCommand},
	{groupFiles, newValidateCommand},
	{groupFiles, newConvertCommand},
	{groupMachine, newSubstrateCommand},
	{groupMachine, newDoctorCommand},
	{groupMachine, newBenchCommand},
	{groupMachine, newServeCommand},
	{groupMachine, newSandboxCommand},
	{groupMachine, newCertCommand},
	{groupMachine, newStoreCommand},
	{groupMachine, newVersionCommand},
	{groupMachine, newCompletionCommand},
}

// interruptible returns a context that ends at the first interrupt or
// termination signal. The second one kills the program as usual, so that
// nothing can hold a user.
func interruptible(cmd *cobra.Command) (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

// interrupted reports whether ctx ended by a signal, not by its deadline.
func interrupted(ctx context.Context) bool {
	return errors.Is(ctx.Err(), context.Canceled)
}

// lines joins paragraphs of help text.
func lines(s ...string) string { return strings.Join(s, "\n") }

func envOr(key, otherwise string) string {
	if v := os.Getenv(key); v != "" {
		return v
	}
	return otherwise
}

// stateDir is the state directory that belongs to the environment's instance:
// the named one, the default beside the default run directory, else empty.
func (e *Env) stateDir() string {
	if v := os.Getenv(envStateDir); v != "" {
		return v
	}
	if filepath.Clean(e.RunDir) == defaultRunDir {
		return defaultStateDir
	}
	return ""
}
