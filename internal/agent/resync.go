package agent

import (
	"context"
	"time"
)

// resyncEvery is how often the pins of the data plane are read anew. It finds what
// nobody notifies of: programs that an administrator has taken off a port.
const resyncEvery = 10 * time.Minute

// resyncDataplane has the networks look at their devices that have lost programs,
// until ctx ends.
func (a *Agent) resyncDataplane(ctx context.Context) {
	tick := time.NewTicker(resyncEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		changed, err := a.paths.Resync()
		if err != nil {
			a.log.Warn("the data plane's programs could not be looked after", "err", err)
			continue
		}
		for _, vnet := range changed {
			a.mu.Lock()
			w := a.workers[vnet]
			a.mu.Unlock()
			if w != nil {
				w.notify()
			}
		}
	}
}
