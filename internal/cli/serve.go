package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"trellis/internal/config"
	"trellis/internal/serve"
)

func newServeCommand(env *Env) *cobra.Command {
	var (
		stop, background bool
		file             string
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
			"--config names the configuration: the host's name, its uplinks, and how it works",
			"together with other hosts. Without the flag, the default instance reads",
			config.DefaultFile+" where that is there, and is otherwise a machine on its own.",
			"",
			"--stop ends the service of the run directory and returns when it is gone; with none",
			"running there is nothing to do. --background returns when it answers."),
		Example: lines(
			"  trellis serve",
			"  trellis serve --background",
			"  trellis serve --stop",
			"  trellis serve --config alpha.yaml",
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
			if stop {
				return serve.Stop(cfg)
			}
			if cfg.Adopt && cfg.RemoveAll {
				return usagef("--adopt and --remove-all exclude each other")
			}
			if cfg.StartTimeout <= 0 {
				return usagef("--start-timeout %v is no time to wait; write one like 30s", cfg.StartTimeout)
			}
			var err error
			if cfg.Settings, err = env.settings(file); err != nil {
				return err
			}
			if background {
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
	f.StringVar(&file, "config", "", "configuration file (default: "+config.DefaultFile+" if it is there, for the default instance)")
	f.DurationVar(&cfg.StartTimeout, "start-timeout", serve.DefaultStartTimeout, "how long to wait for a store on another host")
	f.StringVar(&cfg.StateDir, "state-dir", envOr(envStateDir, ""), "directory of the store and of the nodes' files (default "+defaultStateDir+"; $"+envStateDir+")")
	f.BoolVar(&cfg.Adopt, "adopt", false, "start with a store that is not the one of the last start, and leave alone what runs here and it does not know")
	f.BoolVar(&cfg.RemoveAll, "remove-all", false, "start with such a store, and remove what runs here and it does not know")
	f.StringVar(&cfg.Instance, "instance", "", "tag of everything that this instance owns (default: derived from the run directory)")
	f.StringVar(&cfg.Runtime, "runtime", "crun", "container runtime: crun, runc, or a path")
	f.StringVar(&cfg.LogLevel, "log-level", "info", "least severe messages to log: debug, info, warn, error")
	return cmd
}

// settings reads the configuration file, or the one of the default instance
// where none is named. It gives nil for a machine on its own.
func (e *Env) settings(file string) (*config.Config, error) {
	if file == "" {
		_, err := os.Stat(config.DefaultFile)
		if filepath.Clean(e.RunDir) != defaultRunDir || errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		file = config.DefaultFile
	}
	c, err := config.Read(file)
	if err != nil {
		return nil, &inputError{err}
	}
	return c, nil
}

// startService starts the service of env in the background and says so, or waits for
// one that is just being started.
func startService(_ context.Context, env *Env) error {
	settings, err := env.settings("")
	if err != nil {
		return err
	}
	cfg := serve.Config{StateDir: env.stateDir(), RunDir: env.RunDir, Runtime: "crun", LogLevel: "info", Settings: settings}
	started, err := serve.Ensure(cfg)
	if err != nil || !started {
		return err
	}
	fmt.Fprintln(env.Stderr, "trellis: started the service in the background; `trellis serve --stop` ends it")
	return nil
}

// stopService ends the service of env.
func stopService(env *Env) error {
	return serve.Stop(serve.Config{StateDir: env.stateDir(), RunDir: env.RunDir})
}
