// Package agent converges one substrate node's kernel to the plans that the
// store holds for it, and reports what is.
//
// For each VNet there is one worker. It wakes when the plan changes, when a
// node dies, or when it is nudged; then it observes the kernel, asks package
// reconcile for the steps, and carries them out. What it did before plays no
// part, so an agent that was killed anywhere simply begins again. What the
// machine holds and no plan mentions has a worker too, with an empty plan.
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"

	"trellis/internal/plan"
	"trellis/internal/store"
	"trellis/internal/substrate/container"
	"trellis/internal/substrate/dataplane"
	"trellis/internal/substrate/netns"
	"trellis/internal/substrate/port"
)

// Store is the part of the store that an agent uses.
type Store interface {
	WatchPlans(ctx context.Context, host string) <-chan store.PlanEvent
	PutStatus(ctx context.Context, host, vnet string, st *store.Status) error
	Statuses(ctx context.Context, vnet string) (map[string]*store.Status, error)
	Plan(ctx context.Context, host, vnet string) (*plan.Plan, error)
}

// neighbours is how many neighbours the machine must be able to know: the
// kernel counts those of all network namespaces together, and each link of each
// family needs two.
const neighbours = 1 << 17

// Config is what an agent needs.
type Config struct {
	Host     string // name of this substrate node
	Instance string // owner tag of everything that it makes
	RunDir   string // volatile state
	StateDir string // durable state
	Runtime  string // OCI runtime; see container.Config
	Store    Store
	Log      *slog.Logger
	// Uplinks are the underlay interfaces; none: links stay on this machine.
	Uplinks []Uplink
}

// Agent is the reconciler of one substrate node.
type Agent struct {
	cfg        Config
	log        *slog.Logger
	containers *container.Runtime
	pins       string // the BPF file system
	paths      *dataplane.Dataplane
	uplinks    *uplinks // nil: none are configured

	mu      sync.Mutex
	workers map[string]*worker
	running sync.WaitGroup
	changed chan struct{} // see UnderlayChanged
	swept   chan struct{} // closed when the leftovers without a plan have workers
}

// New opens the kernel's facilities, and removes what a predecessor that was
// killed had just begun to make.
func New(cfg Config) (*Agent, error) {
	containers, err := container.New(container.Config{
		Instance: cfg.Instance, RunDir: cfg.RunDir, StateDir: cfg.StateDir, Runtime: cfg.Runtime,
	})
	if err != nil {
		return nil, err
	}
	pins := filepath.Join(cfg.RunDir, "bpf")
	if err := dataplane.Mount(pins); err != nil {
		return nil, err
	}
	paths, err := dataplane.Open(pins)
	if err != nil {
		return nil, fmt.Errorf("open the data plane: %w", err)
	}
	a := &Agent{
		cfg: cfg, log: cfg.Log, containers: containers, pins: pins, paths: paths,
		workers: map[string]*worker{}, changed: make(chan struct{}, 1), swept: make(chan struct{}),
	}
	if err := a.unmakeAll(); err != nil {
		return nil, errors.Join(fmt.Errorf("tidy up after a predecessor: %w", err), a.Close())
	}
	if a.uplinks, err = newUplinks(cfg.Uplinks, paths); err != nil {
		return nil, errors.Join(err, a.Close())
	}
	if a.uplinks != nil {
		a.uplinks.refresh(a.log)
	}
	return a, nil
}

// Run converges until ctx ends. What runs goes on without it.
func (a *Agent) Run(ctx context.Context) error {
	if err := netns.RaiseNeighbourLimits(neighbours); err != nil {
		return err
	}
	defer a.running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, task := range []func(context.Context){a.follow, a.refreshNeighbours} {
		a.running.Add(1)
		go func() {
			defer a.running.Done()
			task(ctx)
		}()
	}
	synced := false
	for e := range a.cfg.Store.WatchPlans(ctx, a.cfg.Host) {
		switch {
		case e.Synced && !synced:
			synced = true
			if err := a.adoptStrays(ctx); err != nil {
				return fmt.Errorf("look for what no plan mentions: %w", err)
			}
			close(a.swept)
		case e.Synced:
		case e.Err != nil:
			a.log.Error("a plan cannot be read; what runs of it is left alone", "vnet", e.VNet, "err", e.Err)
		case e.Plan == nil:
			a.mu.Lock()
			w := a.workers[e.VNet]
			a.mu.Unlock()
			if w != nil { // else there is nothing of it, or it was never known
				w.forget()
			}
		default:
			a.assign(ctx, e.VNet, e.Plan)
		}
	}
	if ctx.Err() == nil {
		return fmt.Errorf("the watch of this machine's plans has ended: the store is gone")
	}
	return nil
}

// Close lets go of the kernel's facilities. Where no network runs, it takes the
// data plane away as well, so that an idle service leaves nothing.
func (a *Agent) Close() error {
	attached, err := a.paths.Read()
	if a.uplinks != nil {
		err = errors.Join(err, a.uplinks.underlay.Close())
	}
	err = errors.Join(err, a.paths.Close(), a.containers.Close())
	if err != nil || len(attached) > 0 {
		return err
	}
	return dataplane.Unmount(a.pins)
}

// assign gives a VNet's worker a plan to converge to. It keeps retire out
// meanwhile: a worker that has just found itself done would never look at it.
func (a *Agent) assign(ctx context.Context, vnet string, p *plan.Plan) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.worker(ctx, vnet).assign(p)
}

// worker gives the VNet's worker, and starts one if there is none. The caller
// holds mu.
func (a *Agent) worker(ctx context.Context, vnet string) *worker {
	w := a.workers[vnet]
	if w == nil {
		w = newWorker(a, vnet)
		a.workers[vnet] = w
		a.running.Add(1)
		go func() {
			defer a.running.Done()
			w.run(ctx)
		}()
	}
	return w
}

// retire removes a worker that has nothing left to do; false if it has.
func (a *Agent) retire(w *worker) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.forgotten {
		return false
	}
	delete(a.workers, w.vnet)
	return true
}

// adoptStrays gives everything of this instance that no plan mentions a worker
// with nothing to want, which removes it.
func (a *Agent) adoptStrays(ctx context.Context) error {
	owners, err := a.owners(ctx)
	if err != nil {
		return err
	}
	for vnet := range owners {
		a.mu.Lock()
		known := a.workers[vnet] != nil
		a.mu.Unlock()
		if !known {
			a.log.Info("removing what no plan mentions", "vnet", vnet)
			a.mu.Lock()
			a.worker(ctx, vnet).forget()
			a.mu.Unlock()
		}
	}
	return a.containers.Sweep(ctx)
}

// owners gives the names of the VNets that the machine holds anything of.
func (a *Agent) owners(ctx context.Context) (map[string]bool, error) {
	owners := map[string]bool{}
	states, err := a.containers.List(ctx)
	if err != nil {
		return nil, err
	}
	for _, s := range states {
		owners[s.VNet] = true
	}
	devices, err := port.List(a.cfg.Instance)
	if err != nil {
		return nil, err
	}
	for _, d := range devices {
		if vnet, _, ok := parseAlias(a.cfg.Instance, d.Alias); ok {
			owners[vnet] = true
		}
	}
	attachments, err := a.paths.Read()
	if err != nil {
		return nil, err
	}
	for _, at := range attachments {
		owners[at.VNet] = true
	}
	return owners, nil
}
