package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"trellis/internal/serve"
)

func newServeCommand(env *Env) *cobra.Command {
	var (
		stop, background bool
		cfg              serve.Config
	)
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the service, or stop the one that runs",
		Long: lines(
			"Run the service: the API on a unix socket in the run directory, the store in the",
			"state directory, and the agent that builds networks. It needs root. Networks outlive",
			"it: stop, crash or upgrade it, and they go on as they are; the next start adopts",
			"them. Instances with directories of their own run side by side.",
			"",
			"--stop ends the service of the run directory and returns when it is gone; with none",
			"running there is nothing to do. --background returns when it answers."),
		Example: lines(
			"  trellis serve",
			"  trellis serve --background",
			"  trellis serve --stop",
			"  trellis serve --run-dir /run/lab --state-dir /var/lib/lab"),
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if stop && background {
				return usagef("--stop and --background exclude each other")
			}
			if cmd.Flags().Changed("address") {
				return usagef("the service listens in its run directory; use --run-dir instead of --address")
			}
			cfg.RunDir, cfg.Version = env.RunDir, version()
			if cfg.StateDir == "" {
				if cfg.StateDir = env.stateDir(); cfg.StateDir == "" && !stop {
					return usagef("--run-dir %s is another instance than the default one and needs a --state-dir of its own", env.RunDir)
				}
			}
			switch {
			case stop:
				return serve.Stop(cfg)
			case background:
				return serve.Background(cfg)
			}
			ctx, cancel := interruptible(cmd)
			defer cancel()
			if err := serve.Run(ctx, cfg); err != nil && !(errors.Is(err, context.Canceled) && interrupted(ctx)) {
				return err
			}
			return nil
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	f := cmd.Flags()
	f.BoolVar(&stop, "stop", false, "stop the service of the run directory")
	f.BoolVar(&background, "background", false, "return when the service answers, and leave it running")
	f.StringVar(&cfg.StateDir, "state-dir", envOr(envStateDir, ""), "directory of the store and of the nodes' files (default "+defaultStateDir+"; $"+envStateDir+")")
	f.StringVar(&cfg.Instance, "instance", "", "tag of everything that this instance owns (default: derived from the run directory)")
	f.StringVar(&cfg.Runtime, "runtime", "crun", "container runtime: crun, runc, or a path")
	f.StringVar(&cfg.LogLevel, "log-level", "info", "least severe messages to log: debug, info, warn, error")
	return cmd
}

// startService starts the service of env in the background and says so.
func startService(_ context.Context, env *Env) error {
	cfg := serve.Config{StateDir: env.stateDir(), RunDir: env.RunDir, Runtime: "crun", LogLevel: "info"}
	if err := serve.Background(cfg); err != nil {
		return err
	}
	fmt.Fprintln(env.Stderr, "trellis: started the service in the background; `trellis serve --stop` ends it")
	return nil
}

// stopService ends the service of env.
func stopService(env *Env) error {
	return serve.Stop(serve.Config{StateDir: env.stateDir(), RunDir: env.RunDir})
}
