package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"trellis/internal/serve"
)

func newStoreCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "store",
		Short: "Save, restore and check the store",
		Long: lines(
			"The store holds what was admitted: descriptions, placements, keys, plans. `store save`",
			"writes a copy of it to a file, also while the service runs; `store restore` makes a",
			"store of a copy; `store check` looks for faults in the store, or in a copy."),
		Example: lines(
			"  trellis store save /var/backups/trellis.copy",
			"  trellis store check /var/backups/trellis.copy",
			"  trellis serve --stop && trellis store restore --force /var/backups/trellis.copy"),
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("say what to do: `trellis store save FILE`, `restore FILE` or `check [FILE]`")
			}
			return verbsOnly(cmd, args)
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	instance := instanceFlags(env, cmd)
	cmd.AddCommand(newStoreSaveCommand(env, instance), newStoreRestoreCommand(env, instance), newStoreCheckCommand(env, instance))
	return cmd
}

// instanceOf gives the instance whose store a command means.
type instanceOf func(cmd *cobra.Command) (serve.Config, error)

// instanceFlags gives the verbs of a command the flags that name an instance.
func instanceFlags(env *Env, cmd *cobra.Command) instanceOf {
	var file, stateDir string
	f := cmd.PersistentFlags()
	f.StringVar(&file, "config", "", "configuration file of the service (default: as the service finds it)")
	f.StringVar(&stateDir, "state-dir", envOr(envStateDir, ""), "directory that the embedded store is in (default "+defaultStateDir+"; $"+envStateDir+")")
	return func(cmd *cobra.Command) (serve.Config, error) {
		c := serve.Config{RunDir: env.RunDir, StateDir: stateDir, Version: version()}
		if cmd.Flags().Changed("address") {
			return c, usagef("the store is that of a service on this machine; use --run-dir instead of --address")
		}
		if c.StateDir == "" {
			if c.StateDir = env.stateDir(); c.StateDir == "" {
				return c, usagef("--run-dir %s is another instance than the default one and needs a --state-dir of its own", env.RunDir)
			}
		}
		var err error
		c.Settings, err = env.settings(file)
		return c, err
	}
}

func newStoreSaveCommand(env *Env, instance instanceOf) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "save FILE",
		Short: "Write a copy of the store to a file",
		Long: lines(
			"Write a copy of the store to FILE, or with - to standard output: all that was admitted,",
			"as it was at one moment. The service may run meanwhile, and change it. The copy holds",
			"users' files, so keep it as you keep those."),
		Example: "  trellis store save /var/backups/trellis.copy",
		Args:    exactly("FILE"),
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := instance(cmd)
		if err != nil {
			return err
		}
		ctx, cancel := interruptible(cmd)
		defer cancel()
		copied, err := serve.CopyStore(ctx, c)
		if err != nil {
			return err
		}
		if args[0] == "-" {
			return copied.Write(env.Stdout)
		}
		if err := writeCopy(args[0], copied); err != nil {
			return fmt.Errorf("save the store to %s: %w", args[0], err)
		}
		fmt.Fprintf(env.Stdout, "%s: %s of %s\n", args[0], networks(copied), copied.Saved.Local().Format(time.DateTime))
		return nil
	}
	return cmd
}

// networks counts those of a copy, for people.
func networks(c *serve.Copy) string {
	if n := len(c.VNets()); n != 1 {
		return fmt.Sprintf("%d networks", n)
	}
	return "1 network"
}

// writeCopy puts a file in place when all of it is on the disk.
func writeCopy(path string, c *serve.Copy) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	err = errors.Join(c.Write(f), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// readCopyFile reads and checks a copy.
func readCopyFile(path string) (*serve.Copy, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, usagef("there is no file %s; `trellis store save FILE` makes a copy", path)
	} else if err != nil {
		return nil, err
	}
	defer f.Close()
	c, err := serve.ReadCopy(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

func newStoreRestoreCommand(env *Env, instance instanceOf) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "restore FILE",
		Short: "Make a store of a copy",
		Long: lines(
			"Make the store of an instance of the copy in FILE. Its service must not run, nor, where",
			"several hosts share the store, any other's. A store that is there is replaced with",
			"--force only; one in the state directory is then kept beside.",
			"",
			"What has been admitted since the copy was taken is not in the store any more, and may",
			"run all the same. So each host refuses to start until it is told what becomes of that:",
			"`trellis serve --adopt` leaves it alone, `trellis serve --remove-all` removes it. No EGRE",
			"key and no user id that may have been given out meanwhile is given out again."),
		Example: "  trellis store restore --force /var/backups/trellis.copy",
		Args:    exactly("FILE"),
	}
	cmd.Flags().BoolVar(&force, "force", false, "replace the store that is there")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := instance(cmd)
		if err != nil {
			return err
		}
		copied, err := readCopyFile(args[0])
		if err != nil {
			return err
		}
		ctx, cancel := interruptible(cmd)
		defer cancel()
		kept, err := serve.RestoreStore(ctx, c, copied, force)
		if kept != "" {
			fmt.Fprintf(env.Stdout, "the store that was there is in %s\n", kept)
		}
		if err != nil {
			return err
		}
		fmt.Fprintf(env.Stdout, "%s: %s of %s; start by `trellis serve --adopt` or `trellis serve --remove-all`\n",
			serve.StoreOf(c), networks(copied), copied.Saved.Local().Format(time.DateTime))
		return nil
	}
	return cmd
}

func newStoreCheckCommand(env *Env, instance instanceOf) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "check [FILE]",
		Short: "Look for faults in the store, or in a copy",
		Long: lines(
			"Read all that is in the store, or in the copy in FILE, and name what is wrong: what cannot",
			"be read, what is missing, and what two networks have. With faults, the exit status is 1."),
		Example: lines(
			"  trellis store check",
			"  trellis store check /var/backups/trellis.copy"),
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usagef("store check takes one file, or none; see `trellis store check --help`")
			}
			return nil
		},
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := instance(cmd)
		if err != nil {
			return err
		}
		var copied *serve.Copy
		what := serve.StoreOf(c)
		if len(args) > 0 {
			what = args[0]
			copied, err = readCopyFile(args[0])
		} else {
			ctx, cancel := interruptible(cmd)
			defer cancel()
			copied, err = serve.CopyStore(ctx, c)
		}
		if err != nil {
			return err
		}
		faults := copied.Check()
		if len(faults) > 0 {
			fmt.Fprintln(env.Stdout, strings.Join(faults, "\n"))
			return fmt.Errorf("%s has %d faults; restore a sound copy by `trellis store restore FILE`, or take the networks down and up again", what, len(faults))
		}
		fmt.Fprintf(env.Stdout, "%s: %s, nothing is wrong\n", what, networks(copied))
		return nil
	}
	return cmd
}
