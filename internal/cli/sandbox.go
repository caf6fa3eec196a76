package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	trellisv1 "trellis/api/trellis/v1"
	"trellis/internal/sandbox"
	"trellis/internal/vnet"
)

// sandboxEnv is what the verbs below `trellis sandbox` share.
type sandboxEnv struct {
	*Env
	state string // --state-dir
	name  string // --name
}

func newSandboxCommand(env *Env) *cobra.Command {
	s := &sandboxEnv{Env: env}
	cmd := &cobra.Command{
		Use:   "sandbox",
		Short: "Make substrate nodes on this machine, to try them out",
		Long: lines(
			"Make a sandbox: substrate nodes on this machine, each a network namespace with a",
			"service of its own, joined by an emulated underlay that nothing else is part of. Their",
			"store and their agents talk over it as on machines of their own. Cut, delay and narrow",
			"it, kill and start agents, and see what happens to the networks.",
			"",
			"While no other service runs here, verbs without an address talk to the sandbox."),
		Example: lines(
			"  trellis sandbox up examples/sandbox-3.yaml",
			"  trellis up examples/abilene.yaml",
			"  trellis sandbox cut gamma",
			"  trellis sandbox down"),
		Args: verbsOnly,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.PersistentFlags().StringVar(&s.state, "state-dir", envOr(envStateDir, ""),
		"directory that keeps sandboxes (default "+defaultStateDir+"; $"+envStateDir+")")
	cmd.AddCommand(
		newSandboxUpCommand(s),
		newSandboxDownCommand(s),
		newSandboxLsCommand(s),
		newSandboxCutCommand(s),
		newSandboxHealCommand(s),
		newSandboxDelayCommand(s),
		newSandboxMTUCommand(s),
		newSandboxKillCommand(s),
		newSandboxStartCommand(s),
		newSandboxExecCommand(s),
	)
	return cmd
}

// place gives the directories of the sandboxes.
func (s *sandboxEnv) place() (sandbox.Place, error) {
	p := sandbox.Place{RunDir: s.RunDir, StateDir: s.state}
	if p.StateDir == "" {
		if p.StateDir = s.stateDir(); p.StateDir == "" {
			return p, usagef("--run-dir %s is not the default one and needs a --state-dir of its own", s.RunDir)
		}
	}
	return p, nil
}

// nameFlag adds --name.
func (s *sandboxEnv) nameFlag(cmd *cobra.Command) {
	cmd.Flags().StringVar(&s.name, "name", "", "the sandbox that is meant, where there are several")
	if err := cmd.RegisterFlagCompletionFunc("name", s.completeNames); err != nil {
		panic(err) // the flag was added one line above
	}
}

func (s *sandboxEnv) completeNames(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	var names []string
	for _, st := range s.list() {
		names = append(names, st.Name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeHosts offers hosts for the first arguments, at most so many.
func (s *sandboxEnv) completeHosts(most int, more ...string) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) >= most {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		words := append([]string{}, more...)
		for _, st := range s.list() {
			for _, h := range st.Hosts {
				if s.name == "" || s.name == st.Name {
					words = append(words, h.Name)
				}
			}
		}
		return words, cobra.ShellCompDirectiveNoFileComp
	}
}

// list gives the sandboxes to a key press: whatever goes wrong, none.
func (s *sandboxEnv) list() []sandbox.State {
	p, err := s.place()
	if err != nil {
		return nil
	}
	all, err := p.List()
	if err != nil {
		return nil
	}
	return all
}

// sandboxResult is a sandbox in `-o json`.
type sandboxResult struct {
	Name   string        `json:"name"`
	MTU    int           `json:"mtu"` // of the underlay
	Hosts  []sandboxHost `json:"hosts"`
	Broken string        `json:"broken,omitempty"` // what is missing of it
}

// sandboxHost is one of its hosts.
type sandboxHost struct {
	Name       string             `json:"name"`
	State      string             `json:"state"`         // running, stopped: its service
	PID        int                `json:"pid,omitempty"` // of its service
	RunDir     string             `json:"runDir"`
	Instance   string             `json:"instance"` // tag of what its service owns
	Addresses  []string           `json:"addresses"`
	Cut        []string           `json:"cut,omitempty"`     // hosts that it is cut from
	Delay      map[string]float64 `json:"delay,omitempty"`   // seconds, by the host that sends
	PathMTU    int                `json:"pathMtu,omitempty"` // where it is below the underlay's
	impairment string
}

func newSandboxResult(st sandbox.State) sandboxResult {
	r := sandboxResult{Name: st.Name, MTU: st.MTU, Hosts: []sandboxHost{}, Broken: st.Broken}
	for _, h := range st.Hosts {
		v := sandboxHost{Name: h.Name, State: "stopped", PID: h.PID, RunDir: h.RunDir, Instance: h.Instance, Addresses: []string{}, Cut: h.Cut, PathMTU: h.Impairment.MTU, impairment: h.Impairment.String()}
		if h.PID != 0 {
			v.State = "running"
		}
		for _, a := range h.Addrs {
			v.Addresses = append(v.Addresses, a.String())
		}
		for from, d := range h.Delay {
			if v.Delay == nil {
				v.Delay = map[string]float64{}
			}
			v.Delay[from] = d.Seconds()
		}
		r.Hosts = append(r.Hosts, v)
	}
	return r
}

// table writes the sandbox for people.
func (r sandboxResult) table(w io.Writer) {
	if r.Broken != "" {
		fmt.Fprintln(w, r.Broken)
	}
	if len(r.Hosts) == 0 {
		return
	}
	t := newTable("SANDBOX", "HOST", "SERVICE", ">PID", "ADDRESSES", "IMPAIRMENTS")
	for _, h := range r.Hosts {
		pid := "-"
		if h.PID != 0 {
			pid = strconv.Itoa(h.PID)
		}
		impairment := h.impairment
		if impairment == "" {
			impairment = "-"
		}
		t.add(r.Name, h.Name, h.State, pid, strings.Join(h.Addresses, ", "), impairment)
	}
	t.write(w)
}

// now gives a sandbox as it is; without a name, the only one.
func (s *sandboxEnv) now(name string) (sandboxResult, error) {
	p, err := s.place()
	if err != nil {
		return sandboxResult{}, err
	}
	all, err := p.List()
	if err != nil {
		return sandboxResult{}, err
	}
	for _, st := range all {
		if name == "" || st.Name == name {
			return newSandboxResult(st), nil
		}
	}
	return sandboxResult{}, sandbox.ErrNone
}

// phases tells the progress of a sandbox's making or end.
func phases(bar *progress) sandbox.Progress {
	return func(phase string, done, total int) {
		bar.update(&trellisv1.Progress{Phase: phase, Done: int32(done), Total: int32(total)})
	}
}

func newSandboxUpCommand(s *sandboxEnv) *cobra.Command {
	var output *choice
	cmd := &cobra.Command{
		Use:   "up FILE",
		Short: "Make a sandbox",
		Long: lines(
			"Make the sandbox that FILE describes: its hosts, the underlay between them, and a",
			"service on each. It returns when all of them have joined the store, which the first",
			"host keeps. Where it was interrupted, or the machine has started anew, it completes",
			"what is there; one that is complete stays as it is."),
		Example: "  trellis sandbox up examples/sandbox-3.yaml",
		Args:    exactly("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := s.place()
			if err != nil {
				return err
			}
			spec, err := sandbox.ReadFile(args[0])
			if err != nil {
				return &inputError{err}
			}
			ctx, stop := interruptible(cmd)
			defer stop()
			bar := newProgress(s.Stderr)
			defer bar.finish()
			begin := time.Now()
			err = p.Up(ctx, spec, phases(bar))
			bar.finish()
			if err != nil && interrupted(ctx) {
				return fmt.Errorf("interrupted; sandbox %s stays as far as it has come: the same command completes it, `trellis sandbox down %s` removes it", spec.Name, spec.Name)
			} else if err != nil {
				return err
			}
			r, err := s.now(spec.Name)
			if err != nil {
				return err
			}
			if own, err := s.listening(ctx); err == nil && own {
				fmt.Fprintf(s.Stderr, "trellis: a service of this machine's own runs, and verbs go on asking it; stop it with `trellis serve --stop`, or ask the sandbox with --run-dir %s\n", r.Hosts[0].RunDir)
			}
			return s.print(output, r, func(w io.Writer) {
				fmt.Fprintf(w, "%s: %s, up after %s\n\n", r.Name, count(len(r.Hosts), "host"), seconds(time.Since(begin)))
				r.table(w)
			})
		},
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return []string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt
		},
	}
	output = outputFlag(cmd)
	return cmd
}

// sandboxGone is what `sandbox down -o json` prints.
type sandboxGone struct {
	Sandbox string  `json:"sandbox"` // what was removed; empty: there was none
	Seconds float64 `json:"seconds"`
}

func newSandboxDownCommand(s *sandboxEnv) *cobra.Command {
	var output *choice
	cmd := &cobra.Command{
		Use:   "down [NAME]",
		Short: "Remove a sandbox with all of its networks",
		Long: lines(
			"Remove a sandbox: its services, the networks that run there, its underlay, its",
			"store. It needs no help from the services, so it does whatever was killed before.",
			"Removing a sandbox that is not there succeeds, and says that there was nothing to do."),
		Example: lines("  trellis sandbox down", "  trellis sandbox down three"),
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usagef("%s takes one NAME; see `%s --help`", verb(cmd), cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := s.place()
			if err != nil {
				return err
			}
			name := ""
			if len(args) > 0 {
				name = args[0]
			}
			ctx, stop := interruptible(cmd)
			defer stop()
			bar := newProgress(s.Stderr)
			defer bar.finish()
			begin := time.Now()
			gone, err := p.Down(ctx, name, phases(bar))
			bar.finish()
			switch {
			case errors.Is(err, sandbox.ErrNone):
			case err != nil && interrupted(ctx):
				return fmt.Errorf("interrupted; the removal may be unfinished: `trellis sandbox down %s` finishes it", gone)
			case err != nil:
				return err
			}
			r := sandboxGone{gone, time.Since(begin).Seconds()}
			return s.print(output, r, func(w io.Writer) {
				switch {
				case gone != "":
					fmt.Fprintf(w, "%s: gone after %s\n", gone, seconds(time.Since(begin)))
				case name != "":
					fmt.Fprintf(w, "%s: no such sandbox, nothing to do\n", name)
				default:
					fmt.Fprintln(w, "no sandbox, nothing to do")
				}
			})
		},
		ValidArgsFunction: s.completeNames,
	}
	output = outputFlag(cmd)
	return cmd
}

func newSandboxLsCommand(s *sandboxEnv) *cobra.Command {
	var output *choice
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List sandboxes, their hosts, and what is wrong with their underlay",
		Long: lines(
			"List the sandboxes and their hosts, and what was cut, delayed or narrowed between",
			"them. What the hosts know of each other, `trellis substrate ls` tells."),
		Example: "  trellis sandbox ls",
		Args:    exactly(),
		RunE: func(*cobra.Command, []string) error {
			p, err := s.place()
			if err != nil {
				return err
			}
			all, err := p.List()
			if err != nil {
				return err
			}
			results := []sandboxResult{}
			for _, st := range all {
				results = append(results, newSandboxResult(st))
			}
			return s.print(output, results, func(w io.Writer) {
				if len(results) == 0 {
					fmt.Fprintln(w, "no sandbox; `trellis sandbox up FILE` makes one")
				}
				for i, r := range results {
					if i > 0 {
						fmt.Fprintln(w)
					}
					r.table(w)
				}
			})
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	output = outputFlag(cmd)
	return cmd
}

// change builds a verb that changes something about hosts: most are named, least
// at least.
func (s *sandboxEnv) change(cmd *cobra.Command, least, most int, does func(context.Context, sandbox.Place, []string) error) *cobra.Command {
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) < least || len(args) > most {
			return usagef("the form is `trellis sandbox %s`; see `%s --help`", cmd.Use, cmd.CommandPath())
		}
		return nil
	}
	output := outputFlag(cmd)
	s.nameFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		p, err := s.place()
		if err != nil {
			return err
		}
		ctx, stop := interruptible(cmd)
		defer stop()
		if err := does(ctx, p, args); err != nil {
			return err
		}
		r, err := s.now(s.name)
		if err != nil {
			return err
		}
		return s.print(output, r, r.table)
	}
	if cmd.ValidArgsFunction == nil {
		cmd.ValidArgsFunction = s.completeHosts(most)
	}
	return cmd
}

// second gives the second argument, or "".
func second(args []string) string {
	if len(args) > 1 {
		return args[1]
	}
	return ""
}

func newSandboxCutCommand(s *sandboxEnv) *cobra.Command {
	return s.change(&cobra.Command{
		Use:   "cut HOST [HOST]",
		Short: "Let no packet pass between two hosts, or between one and all others",
		Long: lines(
			"Let no packet pass between two hosts; with one host, between it and all others.",
			"The carrier stays on, as if the cut was far away."),
		Example: lines("  trellis sandbox cut gamma", "  trellis sandbox cut alpha"),
	}, 1, 2, func(ctx context.Context, p sandbox.Place, args []string) error {
		return p.Cut(ctx, s.name, args[0], second(args))
	})
}

func newSandboxHealCommand(s *sandboxEnv) *cobra.Command {
	return s.change(&cobra.Command{
		Use:   "heal [HOST [HOST]]",
		Short: "Undo cuts and delays between two hosts, or all impairments of one, or of all",
		Long: lines(
			"Undo what was cut and delayed between two hosts; with one host, between it and all",
			"others, and its MTU is the underlay's again. Without a host, all of the sandbox's are",
			"healed so."),
		Example: lines("  trellis sandbox heal beta gamma", "  trellis sandbox heal alpha", "  trellis sandbox heal"),
	}, 0, 2, func(ctx context.Context, p sandbox.Place, args []string) error {
		a, b := "", second(args)
		if len(args) > 0 {
			a = args[0]
		}
		return p.Heal(ctx, s.name, a, b)
	})
}

func newSandboxDelayCommand(s *sandboxEnv) *cobra.Command {
	return s.change(&cobra.Command{
		Use:   "delay HOST [HOST] TIME",
		Short: "Delay packets between two hosts, or between one and all others",
		Long: lines(
			"Delay every packet between two hosts by TIME, one way and the other; with one host,",
			"between it and all others. A TIME of 0 ends it. The kernel must have netem."),
		Example:           lines("  trellis sandbox delay beta gamma 20ms", "  trellis sandbox delay alpha 0"),
		ValidArgsFunction: s.completeHosts(2),
	}, 2, 3, func(ctx context.Context, p sandbox.Place, args []string) error {
		last := len(args) - 1
		delay := time.Duration(0)
		if args[last] != "0" {
			var err error
			if delay, err = vnet.ParseDelay(args[last]); err != nil {
				return usagef("%v", err)
			}
		}
		return p.Delay(ctx, s.name, args[0], second(args[:last]), delay)
	})
}

func newSandboxMTUCommand(s *sandboxEnv) *cobra.Command {
	return s.change(&cobra.Command{
		Use:   "mtu HOST BYTES",
		Short: "Narrow the path between a host and all others",
		Long: lines(
			"Give the path between a host and all others a lower MTU than the underlay has. Longer",
			"packets are refused as a router refuses them: ICMP \"fragmentation needed\", ICMPv6",
			"\"packet too big\". `trellis sandbox heal HOST` undoes it."),
		Example:           "  trellis sandbox mtu alpha 1400",
		ValidArgsFunction: s.completeHosts(1),
	}, 2, 2, func(ctx context.Context, p sandbox.Place, args []string) error {
		mtu, err := strconv.Atoi(args[1])
		if err != nil {
			return usagef("%q is no number of bytes; write one like 1400", args[1])
		}
		return p.Narrow(ctx, s.name, args[0], mtu)
	})
}

func newSandboxKillCommand(s *sandboxEnv) *cobra.Command {
	return s.change(&cobra.Command{
		Use:   "kill HOST",
		Short: "Kill the service of a host; its networks go on",
		Long: lines(
			"Kill the service of a host without warning, as a crash would. What it has built goes",
			"on. `trellis sandbox start HOST` starts it again."),
		Example: "  trellis sandbox kill beta",
	}, 1, 1, func(ctx context.Context, p sandbox.Place, args []string) error {
		killed, err := p.Kill(ctx, s.name, args[0])
		if err == nil && !killed {
			fmt.Fprintf(s.Stderr, "trellis: the service of %s does not run, nothing to do\n", args[0])
		}
		return err
	})
}

func newSandboxStartCommand(s *sandboxEnv) *cobra.Command {
	return s.change(&cobra.Command{
		Use:   "start [HOST...]",
		Short: "Start the services of hosts again",
		Long: lines(
			"Start the services of hosts again, side by side; without a name, those of all that do",
			"not run. They adopt what runs there."),
		Example: lines(
			"  trellis sandbox start beta",
			"  trellis sandbox start"),
	}, 0, math.MaxInt, func(ctx context.Context, p sandbox.Place, args []string) error {
		ran, err := p.Start(ctx, s.name, args...)
		for _, host := range ran {
			if len(args) > 0 {
				fmt.Fprintf(s.Stderr, "trellis: the service of %s runs already, nothing to do\n", host)
			}
		}
		return err
	})
}

func newSandboxExecCommand(s *sandboxEnv) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "exec HOST [--] CMD [ARG...]",
		Short: "Run a command in a host's network, or in the underlay's",
		Long: lines(
			"Run a command of this machine in the network of a host, or of the router between",
			"them, which is called fabric. `trellis` there talks to that host's service. Its exit",
			"status is the command's."),
		Example: lines(
			"  trellis sandbox exec beta -- trellis ls",
			"  trellis sandbox exec fabric -- tcpdump -ni alpha proto gre"),
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 2 {
				return usagef("the form is `trellis sandbox exec HOST -- CMD`; see `%s --help`", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			p, err := s.place()
			if err != nil {
				return err
			}
			argv := args[1:]
			if argv[0] == "--" {
				argv = argv[1:]
			}
			if len(argv) == 0 {
				return usagef("no command to run on %s", args[0])
			}
			return p.Exec(s.name, args[0], argv, exec.LookPath)
		},
		ValidArgsFunction: s.completeHosts(1, "fabric"),
	}
	s.nameFlag(cmd)
	cmd.Flags().SetInterspersed(false)
	return cmd
}
