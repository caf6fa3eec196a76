package vnp

import (
	"context"
	"log/slog"
	"os"

	"connectrpc.com/connect"

	trellisv1 "trellis/api/trellis/v1"
	"trellis/api/trellis/v1/trellisv1connect"
	"trellis/internal/agentapi"
	"trellis/internal/pip"
	"trellis/internal/store"
)

// Config wires a Service. All fields but Log are required.
type Config struct {
	Store    *store.Store
	Provider *pip.Provider
	// Agents gives the agent of a substrate node. The error is one sentence on
	// why it cannot be asked: it is not known, has vanished, or does not answer.
	Agents func(ctx context.Context, host string) (agentapi.Agent, error)
	// Version, StateDir, RunDir and Host are what Info tells; Host is also the
	// substrate node that this process runs on.
	Version, StateDir, RunDir, Host string
	Log                             *slog.Logger // nil: [slog.Default]
}

// Service serves VNetService.
type Service struct {
	store    *store.Store
	provider *pip.Provider
	agents   func(ctx context.Context, host string) (agentapi.Agent, error)
	host     string
	requests requests
	info     *trellisv1.InfoResponse
	log      *slog.Logger
}

var _ trellisv1connect.VNetServiceHandler = (*Service)(nil)

// New makes a service.
func New(c Config) *Service {
	if c.Log == nil {
		c.Log = slog.Default()
	}
	return &Service{
		store: c.Store, provider: c.Provider, agents: c.Agents, host: c.Host, log: c.Log,
		info: &trellisv1.InfoResponse{
			Version: c.Version, Pid: int32(os.Getpid()), StateDir: c.StateDir, RunDir: c.RunDir, Host: c.Host,
		},
	}
}

// Version is that of the service's build.
func (s *Service) Version() string { return s.info.Version }

// Info tells about the service itself.
func (s *Service) Info(context.Context, *connect.Request[trellisv1.InfoRequest]) (*connect.Response[trellisv1.InfoResponse], error) {
	return connect.NewResponse(s.info), nil
}
