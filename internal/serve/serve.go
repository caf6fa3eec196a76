package serve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os/signal"
	"path/filepath"
	"syscall"

	"connectrpc.com/connect"
	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sync/errgroup"

	"trellis/internal/agent"
	"trellis/internal/pip"
	"trellis/internal/store"
	"trellis/internal/vnp"
)

// Agent is what the service runs beside the API.
type Agent interface {
	vnp.Substrate
	// Run converges the machine until ctx ends.
	Run(ctx context.Context) error
}

// errStopping is what requests end with when the service does.
var errStopping = connect.NewError(connect.CodeUnavailable,
	errors.New("trellis serve is stopping; what was admitted goes on when it runs again"))

// Run runs the service until ctx ends or the process gets SIGTERM or SIGINT.
// The networks stay as they are. An error says why the service could not start,
// or could not go on.
func Run(ctx context.Context, c Config) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	parent, err := parentPipe()
	if err != nil {
		return err
	}
	c, err = c.complete()
	if err == nil {
		err = c.run(ctx, parent)
	}
	parent.failed(err)
	return err
}

// run is Run with a complete configuration.
func (c Config) run(ctx context.Context, parent *readyPipe) (err error) {
	if err := c.mkdirs(); err != nil {
		return err
	}
	lock, err := c.hold()
	if err != nil {
		return err
	}
	defer lock.Close()
	log := c.logger(parent.background())
	if parent.background() {
		if err := leaveCgroups(); err != nil {
			log.Warn("the service stays in the control group of the command that started it, and may end with it", "error", err)
		}
	}
	log.Info("starting", "version", c.Version, "instance", c.Instance, "state", c.StateDir, "run", c.RunDir)
	defer func() {
		if err != nil {
			log.Error("trellis serve ends", "error", err)
		} else {
			log.Info("stopped")
		}
	}()
	s, err := c.assemble(ctx, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	return s.serve(ctx, func() {
		log.Info("ready", "address", c.socket())
		parent.ready()
		if _, err := daemon.SdNotify(false, daemon.SdNotifyReady); err != nil {
			log.Warn("systemd does not hear that the service is ready", "error", err)
		}
	})
}

// service is the assembled process.
type service struct {
	config   Config
	log      *slog.Logger
	store    *store.Store
	provider *pip.Provider
	agent    Agent
	api      *vnp.Service
}

// assemble makes the parts. Nothing runs yet but the store.
func (c Config) assemble(ctx context.Context, log *slog.Logger) (_ *service, err error) {
	s := &service{config: c, log: log}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	host, err := c.host()
	if err != nil {
		return nil, err
	}
	s.store, err = store.Open(ctx, store.Options{Dir: filepath.Join(c.StateDir, "etcd"), Log: log})
	if err != nil {
		return nil, err
	}
	s.provider, err = pip.New(pip.Options{Store: s.store, Instance: c.Instance, Host: host, Log: log})
	if err != nil {
		return nil, err
	}
	s.agent, err = c.newAgent(agent.Config{
		Host: host, Instance: c.Instance, RunDir: c.RunDir, StateDir: c.StateDir,
		Runtime: c.Runtime, Store: s.store, Log: log,
	})
	if err != nil {
		return nil, fmt.Errorf("start the agent: %w", err)
	}
	s.api = vnp.New(vnp.Config{
		Store: s.store, Provider: s.provider, Substrate: s.agent,
		Version: c.Version, StateDir: c.StateDir, RunDir: c.RunDir, Host: host, Log: log,
	})
	return s, nil
}

// serve runs the parts until ctx ends or one of them fails.
func (s *service) serve(ctx context.Context, ready func()) error {
	requests, end := context.WithCancelCause(context.Background())
	defer end(nil)
	server, err := listen(requests, s.config.socket(), s.api, s.log)
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.agent.Run(ctx) })
	g.Go(func() error { return s.provider.Run(ctx) })
	g.Go(server.serve)
	g.Go(func() error {
		select {
		case <-ctx.Done():
		case <-s.store.Done():
		}
		// Requests end first, then what they need.
		end(errStopping)
		return errors.Join(s.store.Err(), server.shutdown())
	})
	ready()
	err = g.Wait()
	if cause := s.store.Err(); cause != nil {
		return cause // whatever else has failed, has failed of this
	}
	return err
}

// close ends what assemble has made.
func (s *service) close() error {
	var errs []error
	if c, ok := s.agent.(io.Closer); ok {
		errs = append(errs, c.Close())
	}
	if s.store != nil {
		errs = append(errs, s.store.Close())
	}
	return errors.Join(errs...)
}
