package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"trellis/internal/agentapi"
	"trellis/internal/store"
	"trellis/internal/substrate/container"
)

// Logs implements [agentapi.Agent].
func (a *Agent) Logs(ctx context.Context, vnet, node string, q agentapi.LogQuery, each func(service string, text []byte) error) error {
	s, err := a.state(vnet, node)
	if err != nil {
		return err
	}
	return serviceError(a.containers.Logs(ctx, s.ID, container.LogQuery(q), each))
}

// serviceError has a service that is not there be what callers know as such.
func serviceError(err error) error {
	var none *container.NoServiceError
	if errors.As(err, &none) {
		return store.NotFound("%s", none.Error())
	}
	return err
}

// restartTimeout is how long a node that is restarted may take to run again.
const restartTimeout = time.Minute

// Restart implements [agentapi.Agent]. A node is stopped, and the reconciler makes it
// anew, as it does one that has died.
func (a *Agent) Restart(ctx context.Context, vnet, node, service string) error {
	id := container.ID{VNet: vnet, Node: node}
	if service != "" {
		s, err := a.state(vnet, node)
		if err != nil {
			return err
		}
		return serviceError(a.containers.RestartService(ctx, s.ID, service))
	}
	a.mu.Lock()
	w := a.workers[vnet]
	a.mu.Unlock()
	old, ok := a.containers.Get(id)
	if w == nil || !ok {
		return fmt.Errorf("no node %s is running here: %w", id, store.ErrNotFound)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, restartTimeout,
		fmt.Errorf("node %s does not run again after %s; `trellis show %s` says what keeps it", id, restartTimeout, vnet))
	defer cancel()
	if err := a.containers.KeepSaved(id); err != nil {
		return err
	}
	w.expectExit(node, true)
	if err := a.containers.Stop(ctx, id); err != nil {
		w.expectExit(node, false)
		return err
	}
	w.retryNow()
	for {
		if s, ok := a.containers.Get(id); ok && s.Running && s.Released && s.Pid != old.Pid {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// StopService implements [agentapi.Agent].
func (a *Agent) StopService(ctx context.Context, vnet, node, service string) error {
	s, err := a.state(vnet, node)
	if err != nil {
		return err
	}
	return serviceError(a.containers.StopService(ctx, s.ID, service))
}

// StartService implements [agentapi.Agent].
func (a *Agent) StartService(ctx context.Context, vnet, node, service string) error {
	s, err := a.state(vnet, node)
	if err != nil {
		return err
	}
	return serviceError(a.containers.StartService(ctx, s.ID, service))
}

// expectExit notes that a node's end is wanted, so that it counts as no failure.
func (w *worker) expectExit(node string, on bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if on {
		w.expected[node] = true
	} else {
		delete(w.expected, node)
	}
}

// wasExpected reports whether the end of a node was wanted, once.
func (w *worker) wasExpected(node string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	wanted := w.expected[node]
	delete(w.expected, node)
	return wanted
}

// retryNow has the worker start at once what waits for its restart.
func (w *worker) retryNow() {
	w.mu.Lock()
	w.fresh = true
	w.mu.Unlock()
	w.notify()
}
