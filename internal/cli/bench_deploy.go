package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"trellis/api/trellis/v1/trellisv1connect"
	"trellis/internal/bench"
	"trellis/internal/bench/deploy"
	"trellis/internal/vnet"
)

// benchNetworks are the flags that say which networks to measure.
type benchNetworks struct {
	rings, trees   []int
	grids          []string
	hosts, routers int
	core           string
	routing        string
	suite          string
}

// Names of suites.
const (
	suiteStandard = "standard"
	suiteScale    = "scale"
)

func newBenchDeployCommand(env *Env) *cobra.Command {
	var (
		networks benchNetworks
		cfg      deploy.Config
		scale    deploy.ScaleConfig
		output   *choice
	)
	cmd := &cobra.Command{
		Use:   "deploy [FILE…]",
		Short: "Measure how long networks take to come up, converge and go, and what they cost",
		Long: lines(
			"Bring each network up, wait until it has converged, try a sample of pairs with real",
			"packets, bring it up again unchanged, add a link, take it down; and so --repeat times.",
			"Networks are read from files or generated: rings, trees, grids, and hosts on a core of",
			"routers. The suite \"standard\" has the cases of docs/benchmarks.md; it runs Abilene",
			"from "+deploy.AbilenePath+", and each FILE with static routing.",
			"",
			"The suite \"scale\" stands in for the whole Internet Topology Zoo: it takes the given",
			"FILEs, or all files of a given folder, under other names until they have --nodes nodes,",
			"and brings them up with static routing, --parallel at a time. Beside them it measures",
			"single verbs, the idle service, and a service that is killed and started again while",
			"packets flow; then down --all, a grid of up to 10,000 nodes, and the largest file with",
			"FRR and OSPF for both families. --parts selects among these.",
			"",
			"The networks run on a throw-away service, started for this in namespaces of its own.",
			"With --address a running service is measured instead. The exit status is 1 when a case",
			"fails, a pair is unreachable, or a second up finds something to change."),
		Example: lines(
			"  sudo trellis bench deploy examples/abilene.yaml --repeat 5",
			"  sudo trellis bench deploy --ring 10,100 --routing ospf",
			"  sudo trellis bench deploy --hosts 300 --routers 6 -o json",
			"  sudo trellis bench deploy --suite standard Kdl.graphml",
			"  sudo trellis bench deploy --suite scale zoo/ --nodes 1000 --parts zoo,verbs,down"),
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case cfg.Repeat < 1:
				return usagef("--repeat %d: measure at least once", cfg.Repeat)
			case cfg.Sample < 0:
				return usagef("--sample %d: the number of pairs cannot be negative; 0 tries none", cfg.Sample)
			}
			if networks.suite == suiteScale {
				scale.Settle, scale.Timeout = cfg.Settle, cfg.Timeout
				if !cmd.Flags().Changed("timeout") {
					scale.Timeout = scaleTimeout
				}
				return env.runScale(cmd, scale, &networks, args, output)
			}
			for _, name := range []string{"parts", "nodes", "parallel", "profile"} {
				if cmd.Flags().Changed(name) {
					return usagef("--%s is for --suite %s", name, suiteScale)
				}
			}
			cases, skipped, err := env.benchCases(&networks, args)
			if err != nil {
				return err
			}
			cfg.Cases = cases
			ctx, stop := interruptible(cmd)
			defer stop()
			report, err := env.benchDeploy(ctx, cfg)
			report.Skipped = skipped
			if len(report.Cases) > 0 {
				err = errors.Join(err, env.print(output, report, func(w io.Writer) { deployTable(w, &report) }))
			}
			if err != nil {
				return err
			}
			for i := range report.Cases {
				if !report.Cases[i].Passed() {
					return exitStatus(exitFailed)
				}
			}
			return nil
		},
		ValidArgsFunction: completeFiles,
	}
	f := cmd.Flags()
	f.IntSliceVar(&networks.rings, "ring", nil, "a ring of this many nodes")
	f.IntSliceVar(&networks.trees, "tree", nil, "a binary tree of this many nodes")
	f.StringSliceVar(&networks.grids, "grid", nil, "a grid of ROWSxCOLUMNS nodes")
	f.IntVar(&networks.hosts, "hosts", 0, "this many hosts without routing, spread over --routers")
	f.IntVar(&networks.routers, "routers", 6, "routers that the hosts hang on")
	f.StringVar(&networks.core, "core", string(deploy.Mesh), "how those routers are linked: mesh or ring")
	f.StringVar(&networks.routing, "routing", "", "routing of every network: PROTOCOL[/DAEMON[/TIMERS]] (default: as the file says; ospf/frr/fast for --hosts, else static)")
	f.StringVar(&networks.suite, "suite", "", "a set of cases: "+suiteStandard+" or "+suiteScale)
	scaleFlags(f, &scale)
	f.IntVar(&cfg.Repeat, "repeat", 3, "measure each case this many times")
	f.IntVar(&cfg.Sample, "sample", 1000, "try this many random pairs with real packets; 0: none")
	f.BoolVar(&cfg.AddLink, "add-link", true, "measure the addition of a link, too")
	f.DurationVar(&cfg.Settle, "settle", time.Second, "leave the machine alone for so long before memory is read")
	f.DurationVar(&cfg.Timeout, "timeout", 5*time.Minute, "give up an up or a down after this long; 0: never")
	output = outputFlag(cmd)
	return cmd
}

// benchCases reads and generates the networks to measure.
func (e *Env) benchCases(n *benchNetworks, files []string) ([]deploy.Case, []deploy.Skipped, error) {
	var cases []deploy.Case
	for _, file := range files {
		v, err := e.load(file)
		if err != nil {
			return nil, nil, err
		}
		cases = append(cases, deploy.Case{Name: v.Name, Source: file, VNet: v})
	}
	if n.suite != "" {
		return e.suiteCases(n, cases)
	}
	generated, err := n.generate()
	if err != nil {
		return nil, nil, &usageError{err.Error()}
	}
	if n.routing != "" {
		r, err := deploy.ParseRouting(n.routing)
		if err != nil {
			return nil, nil, usagef("--routing: %v", err)
		}
		for i := range cases {
			if cases[i].VNet, err = deploy.Reroute(cases[i].VNet, r); err != nil {
				return nil, nil, err
			}
		}
	}
	if cases = append(cases, generated...); len(cases) == 0 {
		return nil, nil, usagef("nothing to measure; name a FILE, --ring, --tree, --grid, --hosts or --suite %s", suiteStandard)
	}
	return cases, nil, nil
}

func (e *Env) suiteCases(n *benchNetworks, large []deploy.Case) ([]deploy.Case, []deploy.Skipped, error) {
	if n.suite != suiteStandard {
		return nil, nil, usagef("--suite %q: there is only %s", n.suite, suiteStandard)
	}
	if n.routing != "" || n.hosts > 0 || len(n.rings)+len(n.trees)+len(n.grids) > 0 {
		return nil, nil, usagef("--suite says what to measure; leave --routing and the generators out")
	}
	var abilene *deploy.Case
	if _, err := os.Stat(deploy.AbilenePath); err == nil {
		v, err := e.load(deploy.AbilenePath)
		if err != nil {
			return nil, nil, err
		}
		abilene = &deploy.Case{Name: v.Name, Source: deploy.AbilenePath, VNet: v}
	} else if !errors.Is(err, os.ErrNotExist) {
		return nil, nil, err
	}
	return deploy.Standard(abilene, large)
}

// generate makes the networks that the flags ask for.
func (n *benchNetworks) generate() (cases []deploy.Case, err error) {
	r, core := vnet.Routing{Protocol: vnet.Static}, vnet.Routing{Protocol: vnet.OSPF, Daemon: vnet.FRR, Timers: vnet.TimersFast}
	if n.routing != "" {
		if r, err = deploy.ParseRouting(n.routing); err != nil {
			return nil, fmt.Errorf("--routing: %w", err)
		}
		core = r
	}
	add := func(source string, v *vnet.VNet, err error) error {
		if err != nil {
			return err
		}
		cases = append(cases, deploy.Case{Name: v.Name, Source: source, VNet: v})
		return nil
	}
	for _, k := range n.rings {
		v, err := deploy.Ring(k, r)
		if err := add("ring", v, err); err != nil {
			return nil, err
		}
	}
	for _, k := range n.trees {
		v, err := deploy.Tree(k, r)
		if err := add("binary tree", v, err); err != nil {
			return nil, err
		}
	}
	for _, s := range n.grids {
		rows, columns, _ := strings.Cut(s, "x")
		a, errA := strconv.Atoi(rows)
		b, errB := strconv.Atoi(columns)
		if errA != nil || errB != nil {
			return nil, fmt.Errorf("--grid %q: write ROWSxCOLUMNS, such as 3x4", s)
		}
		v, err := deploy.Grid(a, b, r)
		if err := add("grid", v, err); err != nil {
			return nil, err
		}
	}
	if n.hosts != 0 {
		v, err := deploy.Hosts(n.hosts, n.routers, deploy.Core(n.core), core)
		if err := add(fmt.Sprintf("%d hosts, %d routers in a %s", n.hosts, n.routers, n.core), v, err); err != nil {
			return nil, err
		}
	}
	return cases, nil
}

// benchDeploy measures on a throw-away service, or on the one that --address
// names.
func (e *Env) benchDeploy(ctx context.Context, cfg deploy.Config) (report deploy.Report, err error) {
	bar := newProgress(e.Stderr)
	defer bar.finish()
	cfg.Progress = bar.update
	if e.Address != "" {
		client, err := e.client()
		if err != nil {
			return report, err
		}
		report, err = deploy.Run(ctx, client, cfg)
		report.Address = e.Address
		return report, benchFailure(ctx, err)
	}
	// The sentences about the service that the environment names do not fit the
	// throw-away one: its errors are given as they are.
	defer func() {
		if err != nil {
			err = errors.New(err.Error())
		}
	}()
	err = e.withThrowaway(ctx, bar, func(service *deploy.Service) error {
		report, err = deploy.Run(ctx, service.Client(), cfg)
		return err
	})
	return report, err
}

// stopTimeout bounds taking down what a throw-away service still has at its end.
const stopTimeout = 5 * time.Minute

// withThrowaway measures on a service that is started for this, and ends with it.
func (e *Env) withThrowaway(ctx context.Context, bar *progress, measure func(*deploy.Service) error) error {
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the trellis program to start a service: %w", err)
	}
	service, err := deploy.Start(ctx, deploy.Options{Program: program, Dial: e.dial, Note: bar.note})
	if err != nil {
		return benchFailure(ctx, err)
	}
	err = benchFailure(ctx, measure(service))
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	return errors.Join(err, service.Stop(end))
}

// dial gives a client of the service at an address.
func (e *Env) dial(address string) (trellisv1connect.VNetServiceClient, error) {
	other := *e
	other.Address = address
	return other.client()
}

// benchFailure says in a sentence that the user has interrupted a measurement.
func benchFailure(ctx context.Context, err error) error {
	if err != nil && interrupted(ctx) {
		return errors.New("interrupted; the networks that were being measured are removed")
	}
	return err
}

// deployTable writes the report for people: times first, then costs.
func deployTable(w io.Writer, r *deploy.Report) {
	machineLines(w, r.Machine)
	times := newTable("CASE", "ROUTING", ">NODES", ">LINKS", ">IN PLACE s", ">CONVERGED s", ">AGAIN s", ">LINK ADDED s", ">DOWN s", "REACHABLE")
	costs := newTable("CASE", ">NODE, CGROUP MiB", ">NODE, ALL MiB", ">CPU UP s", ">CPU DOWN s", ">SERVICE IDLE MiB", ">UP MiB", ">AFTER MiB")
	for i := range r.Cases {
		c := &r.Cases[i]
		s := func(name string) string { return spread(c.Summary.Seconds[name], secondsText) }
		b := func(name string) string { return spread(c.Summary.Bytes[name], mebibytes) }
		cpu := func(name string) string { return spread(c.Summary.CPU[name], secondsText) }
		times.add(c.Name, c.Routing, strconv.Itoa(c.Nodes), strconv.Itoa(c.Links),
			s(deploy.Created), s(deploy.Converged), s(deploy.Unchanged), s(deploy.LinkAdded), s(deploy.Down), reachText(c))
		costs.add(c.Name, b(deploy.NodeCgroup), b(deploy.NodeMachine), cpu(deploy.CPUUp), cpu(deploy.CPUDown),
			idleText(c), b(deploy.ServiceUp), b(deploy.ServiceDown))
	}
	times.write(w)
	fmt.Fprintln(w)
	costs.write(w)
	fmt.Fprintf(w, "\nmedian (min–max) of %s; CPU is the whole machine's\n", count(r.Repeat, "round"))
	for i := range r.Cases {
		c := &r.Cases[i]
		if c.Error != "" {
			fmt.Fprintf(w, "%s failed: %s\n", c.Name, oneLine(c.Error))
		}
		for n, s := range c.Samples {
			if s.UnchangedChanges > 0 {
				fmt.Fprintf(w, "%s, round %d: the second up took %s where nothing had changed\n", c.Name, n+1, count(s.UnchangedChanges, "step"))
			}
			for _, f := range s.Reach.Failed {
				fmt.Fprintf(w, "%s, round %d: %s\n", c.Name, n+1, oneLine(f))
			}
		}
	}
	for _, s := range r.Skipped {
		fmt.Fprintf(w, "%s was skipped: %s\n", s.Name, s.Reason)
	}
}

// idleText gives the memory of the service before its first network; later
// rounds begin with what earlier ones have left.
func idleText(c *deploy.Result) string {
	if len(c.Samples) == 0 {
		return "-"
	}
	value, ok := c.Samples[0].Bytes[deploy.ServiceIdle]
	if !ok {
		return "-"
	}
	return spread(bench.Summarize([]float64{value}), mebibytes)
}

// reachText sums up the checks of all rounds.
func reachText(c *deploy.Result) string {
	var pairs, reachable int
	for _, s := range c.Samples {
		pairs += s.Reach.Pairs
		reachable += s.Reach.Reachable
	}
	switch {
	case c.Error != "":
		return "FAIL: " + clip(oneLine(c.Error), 40)
	case pairs == 0:
		return "not tried"
	case reachable < pairs:
		return fmt.Sprintf("FAIL: %d of %d", reachable, pairs)
	}
	return fmt.Sprintf("all %d", pairs)
}
