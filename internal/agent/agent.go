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
	"trellis/internal/substrate/image"
	"trellis/internal/substrate/links"
	"trellis/internal/substrate/netns"
)

// Store is the part of the store that an agent uses.
type Store interface {
	WatchPlans(ctx context.Context, host string) <-chan store.PlanEvent
	PutStatuses(ctx context.Context, host string, statuses map[string]*store.Status) error
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
	Images   Images // which images nodes may have
	Store    Store
	Log      *slog.Logger
	// Uplinks are the underlay interfaces; none: links stay on this machine.
	Uplinks []Uplink
	// KeepFile lists networks that run here, that no plan mentions, and that are
	// left alone all the same; see kept.go. Adopt puts all that runs now into it,
	// RemoveAll empties it.
	KeepFile         string
	Adopt, RemoveAll bool
}

// Images says which images nodes may have, and what these may take.
type Images = image.Policy

// Agent is the reconciler of one substrate node.
type Agent struct {
	cfg         Config
	log         *slog.Logger
	containers  *container.Runtime
	pins        string // the BPF file system
	paths       *dataplane.Dataplane
	uplinks     *uplinks // nil: none are configured
	statuses    *statusWriter
	devices     *links.Table
	routeEvents *netns.RouteEvents

	small, large lane // see lanes.go
	// converge makes one pass of a worker: (*worker).converge, but where a test stands
	// in for the kernel.
	converge func(*worker, *pass) error

	mu       sync.Mutex
	workers  map[string]*worker
	ctx      context.Context // of the workers: Run's; nil: it was not called
	running  sync.WaitGroup
	changed  chan struct{} // see UnderlayChanged
	services *changedServices
	swept    chan struct{} // closed when the leftovers without a plan have workers
}

// New opens the kernel's facilities, and removes what a predecessor that was
// killed had just begun to make.
func New(cfg Config) (*Agent, error) {
	a := &Agent{
		cfg: cfg, log: cfg.Log, pins: filepath.Join(cfg.RunDir, "bpf"),
		workers: map[string]*worker{}, services: newChangedServices(), changed: make(chan struct{}, 1), swept: make(chan struct{}),
		statuses: newStatusWriter(cfg.Store, cfg.Host, cfg.Log), small: newLane(), large: newLane(),
		converge: (*worker).converge,
	}
	containers, err := container.New(container.Config{
		Instance: cfg.Instance, RunDir: cfg.RunDir, StateDir: cfg.StateDir, Runtime: cfg.Runtime, Images: cfg.Images, Changed: a.nodeChanged, Log: cfg.Log,
	})
	if err != nil {
		return nil, err
	}
	a.containers = containers
	if err := dataplane.Mount(a.pins); err != nil {
		return nil, errors.Join(err, containers.Close())
	}
	paths, err := dataplane.Open(a.pins)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open the data plane: %w", err), containers.Close())
	}
	a.paths = paths
	if err := paths.CutThroughSupported(); err != nil && paths.FastPathSupported() == nil {
		a.log.Warn("uplinks do not forward by themselves what nodes' fast paths would", "err", err)
	}
	if a.devices, err = links.Open(cfg.Instance); err != nil {
		return nil, errors.Join(err, paths.Close(), containers.Close())
	}
	if a.routeEvents, err = netns.NewRouteEvents(); err != nil {
		return nil, errors.Join(err, a.devices.Close(), paths.Close(), containers.Close())
	}
	if err := a.removeAllPending(); err != nil {
		return nil, errors.Join(fmt.Errorf("tidy up after a predecessor: %w", err), a.Close())
	}
	if err := a.updateKept(); err != nil {
		return nil, errors.Join(err, a.Close())
	}
	if a.uplinks, err = newUplinks(cfg.Uplinks, paths); err != nil {
		return nil, errors.Join(err, a.Close())
	}
	if a.uplinks != nil {
		a.uplinks.underlay.LogTo(a.log)
		a.uplinks.refresh(a.log)
	}
	return a, nil
}

// Run converges until ctx ends. What runs goes on without it.
func (a *Agent) Run(ctx context.Context) error {
	if err := netns.RaiseNeighbourLimits(neighbours); err != nil {
		return err
	}
	// What the workers report last is written when they have ended.
	writing, stopWriting := context.WithCancel(context.WithoutCancel(ctx))
	written := make(chan struct{})
	go func() {
		defer close(written)
		a.statuses.run(writing)
	}()
	defer func() { stopWriting(); <-written }()
	defer a.running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	a.mu.Lock()
	a.ctx = ctx
	a.mu.Unlock()
	for _, task := range []func(context.Context){a.followUnderlay, a.refreshNeighbours, a.followServices, a.followPorts, a.audit, a.resyncDataplane, a.guardSoftirqs, a.guardMemory} {
		a.running.Add(1)
		go func() {
			defer a.running.Done()
			task(ctx)
		}()
	}
	return a.followPlans(ctx, a.adoptStrays)
}

// Close lets go of the kernel's facilities. Where no network runs, it takes the
// data plane away as well, so that an idle service leaves nothing.
func (a *Agent) Close() error {
	attached, err := a.paths.Read()
	if a.uplinks != nil {
		err = errors.Join(err, a.uplinks.underlay.Close())
	}
	err = errors.Join(err, a.routeEvents.Close(), a.devices.Close(), a.paths.Close(), a.containers.Close())
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
	owners, err := a.owners()
	if err != nil {
		return err
	}
	kept, err := a.kept()
	if err != nil {
		return err
	}
	for vnet := range owners {
		a.mu.Lock()
		known := a.workers[vnet] != nil
		a.mu.Unlock()
		if !known && kept[vnet] {
			a.log.Info("leaving alone what no plan mentions", "vnet", vnet)
			continue
		}
		if !known {
			a.log.Info("removing what no plan mentions", "vnet", vnet)
			a.mu.Lock()
			a.worker(ctx, vnet).forget()
			a.mu.Unlock()
		}
	}
	if len(kept) > 0 {
		return nil // files of nodes that are kept are not to be swept
	}
	return a.containers.Sweep(ctx)
}

// owners gives the names of the VNets that the machine holds anything of.
func (a *Agent) owners() (map[string]bool, error) {
	owners := map[string]bool{}
	for _, vnet := range a.containers.VNets() {
		owners[vnet] = true
	}
	saved, err := a.containers.SavedVNets()
	if err != nil {
		return nil, err
	}
	for _, vnet := range saved {
		owners[vnet] = true
	}
	vnets, err := a.devices.VNets()
	if err != nil {
		return nil, err
	}
	for _, vnet := range vnets {
		owners[vnet] = true
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

// nodeChanged wakes the worker of a node whose init has ended, and has changes of its
// services reported.
func (a *Agent) nodeChanged(id container.ID) {
	a.mu.Lock()
	w := a.workers[id.VNet]
	a.mu.Unlock()
	if w == nil {
		return
	}
	switch s, ok := a.containers.Get(id); {
	case ok && s.Running:
		a.services.add(id)
	case w.wasRunning(id.Node):
		w.notify()
	}
}
