package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"trellis/internal/substrate/container"
	"trellis/internal/substrate/netns"
)

const (
	// neighboursEvery is how often the neighbours of nodes on the fast path are
	// asked after; as long as the kernel takes one for reachable without a word.
	neighboursEvery = 30 * time.Second
	// neighboursEach bounds how many of one node's at a time.
	neighboursEach = 256
)

// refreshNeighbours asks after the neighbours of nodes whose packets are
// forwarded on their behalf, until ctx ends: no stack of theirs would notice
// that one has gone.
func (a *Agent) refreshNeighbours(ctx context.Context) {
	tick := time.NewTicker(neighboursEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := a.askNeighbours(ctx); err != nil && ctx.Err() == nil {
			a.log.Warn("the neighbours of nodes on the fast path could not be asked after", "err", err)
		}
	}
}

func (a *Agent) askNeighbours(ctx context.Context) error {
	fast := a.fastNodes()
	if len(fast) == 0 {
		return nil
	}
	var errs []error
	for _, id := range fast {
		s, ok := a.containers.Get(id)
		if ctx.Err() != nil || !ok || !s.Running || !s.Released {
			continue
		}
		ns, err := netns.OfPid(s.Pid)
		if err != nil {
			continue // it has just ended
		}
		_, err = ns.RefreshNeighbours(neighboursEach)
		ns.Close()
		if err != nil { // the other nodes are none the worse
			errs = append(errs, fmt.Errorf("%s: %w", s.ID, err))
		}
	}
	return errors.Join(errs...)
}

// fastNodes gives the nodes that may be on the fast path.
func (a *Agent) fastNodes() []container.ID {
	if a.paths.FastPathSupported() != nil {
		return nil
	}
	var fast []container.ID
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, w := range a.workers {
		w.mu.Lock()
		if w.want != nil && len(w.want.Tunnels) > 0 {
			for i := range w.want.Nodes {
				if n := &w.want.Nodes[i]; !n.NoFastPath {
					fast = append(fast, container.ID{VNet: w.vnet, Node: n.Name})
				}
			}
		}
		w.mu.Unlock()
	}
	return fast
}
