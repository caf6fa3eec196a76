package cli

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	trellisv1 "trellis/api/trellis/v1"
)

// Version is the version of this program, set when it is built:
// -ldflags "-X trellis/internal/cli.Version=v1.2.3". Empty, it is the version
// control system's revision.
var Version string

// versionResult is what `version -o json` prints. Service is absent where none
// answers.
type versionResult struct {
	Version  string       `json:"version"`
	Go       string       `json:"go"`
	Platform string       `json:"platform"`
	Service  *serviceInfo `json:"service,omitempty"`
}

type serviceInfo struct {
	Version  string `json:"version"`
	PID      int    `json:"pid"`
	Host     string `json:"host"`
	StateDir string `json:"stateDir"`
	RunDir   string `json:"runDir"`
}

func newVersionCommand(env *Env) *cobra.Command {
	var output *choice
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the versions of this program and of the service",
		Long: lines(
			"Print the version of this program and, where a service answers, the service's, with",
			"its process and directories. Without a service that part is left out."),
		Example: lines(
			"  trellis version",
			"  trellis version -o json"),
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			result := versionResult{Version: version(), Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
			client, err := env.client()
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), 2*time.Second)
			defer cancel()
			if resp, err := client.Info(ctx, connect.NewRequest(&trellisv1.InfoRequest{})); err == nil {
				m := resp.Msg
				result.Service = &serviceInfo{m.GetVersion(), int(m.GetPid()), m.GetHost(), m.GetStateDir(), m.GetRunDir()}
			} else if !notListening(err) {
				fmt.Fprintf(env.Stderr, "trellis: %s\n", describe(env, err))
			}
			return env.print(output, result, func(w io.Writer) {
				fmt.Fprintf(w, "trellis %s (%s, %s)\n", result.Version, result.Go, result.Platform)
				if s := result.Service; s != nil {
					fmt.Fprintf(w, "service %s at %s: process %d on %s, state in %s\n", s.Version, env.address(), s.PID, s.Host, s.StateDir)
				}
			})
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	output = outputFlag(cmd)
	return cmd
}

// version gives the version of this program.
func version() string {
	if Version != "" {
		return Version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	revision, dirty := "", ""
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			revision = s.Value[:min(12, len(s.Value))]
		case "vcs.modified":
			if s.Value == "true" {
				dirty = "+changes"
			}
		}
	}
	if revision == "" {
		return "development"
	}
	return revision + dirty
}
