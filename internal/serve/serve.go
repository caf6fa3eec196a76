package serve

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os/signal"
	"syscall"

	"connectrpc.com/connect"
	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sync/errgroup"

	"trellis/internal/agent"
	"trellis/internal/agentapi"
	"trellis/internal/config"
	"trellis/internal/fleet"
	"trellis/internal/metrics"
	"trellis/internal/pip"
	"trellis/internal/pki"
	"trellis/internal/store"
	"trellis/internal/vnp"
)

// Agent is what the service runs beside the API.
type Agent interface {
	agentapi.Agent
	// Run converges the machine until ctx ends.
	Run(ctx context.Context) error
	// Underlay is what the uplinks offer now.
	Underlay() agent.Underlay
	// UnderlayChanged has a message after changes of that.
	UnderlayChanged() <-chan struct{}
}

// errStopping is what requests end with when the service does.
var errStopping = connect.NewError(connect.CodeUnavailable,
	errors.New("trellis serve is stopping; what was admitted goes on when it runs again"))

// Run runs the service until ctx ends or the process gets SIGTERM or SIGINT.
// The networks stay as they are. An error says why the service could not start,
// or could not go on. The umask of the process becomes 022: what nodes' own
// users must pass through is made with the modes that it needs.
func Run(ctx context.Context, c Config) error {
	syscall.Umask(0o022)
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
	if err := checkCgroupsVisible(); err != nil {
		return err
	}
	if err := c.mkdirs(); err != nil {
		return err
	}
	lock, err := c.acquireLock()
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
	config        Config
	host          string
	log           *slog.Logger
	tls           *tls.Config  // nil: this host talks to no other
	agentListener net.Listener // for the other hosts; nil: none
	store         *store.Store
	registration  *store.Registration // nil without the role agent
	clockMessage  string              // of the machine's clock, as published
	provider      *pip.Provider       // nil without the role pip
	agent         Agent               // nil without the role agent
	fleet         *fleet.Fleet
	api           *vnp.Service // nil without the role vnp
}

// assemble makes the components, from what refuses first to what touches most.
// Nothing runs yet but the store.
func (c Config) assemble(ctx context.Context, log *slog.Logger) (_ *service, err error) {
	s := &service{config: c, log: log}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if s.host, err = c.host(); err != nil {
		return nil, err
	}
	if c.Settings.TLS != (pki.Files{}) {
		if s.tls, err = c.Settings.TLS.Config(); err != nil {
			return nil, err
		}
	}
	if c.Settings.Listen != "" {
		if s.agentListener, err = net.Listen("tcp", c.Settings.Listen); err != nil {
			return nil, fmt.Errorf("the agent cannot listen at %s: %w; name an address of this machine and a free port", c.Settings.Listen, err)
		}
	}
	// A store elsewhere may be beyond an uplink that cannot serve: that is then
	// what to say.
	if c.Settings.Has(config.Agent) {
		if err := agent.CheckUplinks(c.uplinks()); err != nil {
			return nil, err
		}
	}
	if err := c.checkStoreThere(); err != nil {
		return nil, err
	}
	if s.store, err = c.openStore(ctx, log); err != nil {
		return nil, err
	}
	identity, err := c.checkStore(ctx, s.store, log)
	if err != nil {
		return nil, err
	}
	if c.Settings.Has(config.Agent) {
		if err := s.claim(ctx); err != nil {
			return nil, err
		}
	}
	if err := c.rememberIdentity(s.host, identity); err != nil {
		return nil, err
	}
	here := "" // whose agent runs in this process
	if c.Settings.Has(config.Agent) {
		here = s.host
		if err := s.startAgent(); err != nil {
			return nil, err
		}
	}
	var local agentapi.Agent
	if s.agent != nil {
		local = s.agent
	}
	s.fleet = fleet.New(fleet.Config{Host: s.host, Local: local, Hosts: s.store.Hosts, TLS: s.tls})
	if !c.Settings.Has(config.PIP) {
		return s, nil
	}
	s.provider, err = pip.New(pip.Options{Store: s.store, Instance: c.Instance, Host: here, KeptIDs: c.keepFile(), Log: log})
	if err != nil {
		return nil, err
	}
	s.api = vnp.New(vnp.Config{
		Store: s.store, Provider: s.provider, Agents: s.fleet.Agent,
		Version: c.Version, StateDir: c.StateDir, RunDir: c.RunDir, Host: s.host, Log: log,
	})
	return s, nil
}

// openStore opens the store, waiting so long for one that is elsewhere.
func (c Config) openStore(ctx context.Context, log *slog.Logger) (*store.Store, error) {
	o := store.Options{
		Dir: c.storeDir(), Listen: c.Settings.StoreListen, Endpoints: c.Settings.StoreEndpoints,
		TLS: c.Settings.TLS, Log: log,
	}
	if len(o.Endpoints) > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.StartTimeout)
		defer cancel()
	}
	return store.Open(ctx, o)
}

// claim claims the host's name, so that a second host of the name touches nothing.
func (s *service) claim(ctx context.Context) error {
	h, err := s.config.describe(s.host)
	if err != nil {
		return err
	}
	s.registration, err = s.store.Claim(ctx, h)
	return err
}

// startAgent makes the agent.
func (s *service) startAgent() (err error) {
	c := s.config
	s.agent, err = c.newAgent(agent.Config{
		Host: s.host, Instance: c.Instance, RunDir: c.RunDir, StateDir: c.StateDir,
		Runtime: c.Runtime, Images: agent.Images(c.Settings.Images), Store: s.store, Log: s.log, Uplinks: c.uplinks(),
		KeepFile: c.keepFile(), Adopt: c.foreign() == adoptForeign, RemoveAll: c.foreign() == purgeForeign,
	})
	if err != nil {
		return fmt.Errorf("start the agent: %w", err)
	}
	return nil
}

// uplinks gives the configured uplinks in the agent's terms.
func (c Config) uplinks() []agent.Uplink {
	var all []agent.Uplink
	for _, u := range c.Settings.Uplinks {
		all = append(all, agent.Uplink{Interface: u.Interface, Addrs: u.Addrs, XDP: u.XDP})
	}
	return all
}

// component is one of what runs side by side: run until it fails or is asked to stop,
// which end does.
type component struct {
	run func() error
	end func() error
}

// listeners makes all that answers requests, whose contexts are children of
// base: what cannot listen is reported before anything runs.
func (s *service) listeners(base context.Context) ([]component, error) {
	handler := s.metricsHandler()
	local, err := listen(base, s.config.socket(), s.api, handler, s.copyHandler(), s.log)
	if err != nil {
		return nil, err
	}
	components := []component{{local.serve, local.shutdown}}
	if at := s.config.Settings.Metrics; at != "" {
		m, err := listenMetrics(base, at, handler, s.log)
		if err != nil {
			return nil, errors.Join(err, local.close())
		}
		components = append(components, component{m.serve, m.shutdown})
	}
	if s.agentListener != nil {
		o, err := fleet.NewServer(fleet.ServerConfig{Agent: s.agent, TLS: s.tls, Base: base, Log: s.log})
		if err != nil {
			for _, c := range components {
				err = errors.Join(err, c.end())
			}
			return nil, err
		}
		listener := s.agentListener
		s.agentListener = nil // its server closes it
		components = append(components, component{
			func() error { return o.Serve(listener) },
			func() error {
				ctx, cancel := context.WithTimeout(context.Background(), drain)
				defer cancel()
				return o.Shutdown(ctx)
			},
		})
	}
	return components, nil
}

// serve runs the components until ctx ends or one of them fails.
func (s *service) serve(ctx context.Context, ready func()) error {
	requests, end := context.WithCancelCause(context.Background())
	defer end(nil)
	components, err := s.listeners(requests)
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	for _, p := range components {
		g.Go(p.run)
	}
	if s.agent != nil {
		g.Go(func() error { return s.agent.Run(ctx) })
		g.Go(func() error {
			// The others may ask for something as soon as they know of the host.
			if err := s.publishHost(ctx); err != nil {
				return err
			}
			ready()
			return s.publishChanges(ctx)
		})
	} else {
		ready()
	}
	if s.provider != nil {
		g.Go(func() error { return s.provider.Run(ctx) })
	}
	g.Go(func() error {
		select {
		case <-ctx.Done():
		case <-s.store.Done():
		}
		// Requests end first, then what they need.
		end(errStopping)
		errs := []error{s.store.Err()}
		for _, p := range components {
			errs = append(errs, p.end())
		}
		return errors.Join(errs...)
	})
	err = g.Wait()
	if cause := s.store.Err(); cause != nil {
		return cause // whatever else has failed, has failed of this
	}
	return err
}

// metricsHandler answers Prometheus.
func (s *service) metricsHandler() http.Handler {
	c := metrics.Config{Version: s.config.Version, Log: s.log}
	if a, ok := s.agent.(metrics.Agent); ok {
		c.Agent = a
	}
	if s.api != nil {
		c.Store = s.store
	}
	return metrics.Handler(c)
}

// close ends what assemble has made.
func (s *service) close() error {
	var errs []error
	if s.agentListener != nil {
		errs = append(errs, s.agentListener.Close())
	}
	if s.fleet != nil {
		s.fleet.Close()
	}
	if c, ok := s.agent.(io.Closer); ok {
		errs = append(errs, c.Close())
	}
	if s.registration != nil {
		errs = append(errs, s.registration.Close())
	}
	if s.store != nil {
		errs = append(errs, s.store.Close())
	}
	return errors.Join(errs...)
}
