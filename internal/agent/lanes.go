package agent

import (
	"context"
	"runtime"

	"trellis/internal/plan"
)

// The workers of hundreds of VNets share a few cores and, for most of what they do,
// one lock of the kernel's. So their work is cut into turns, of which only so many
// are taken at once, in the order of asking. VNets of many nodes and those of few
// have turns of their own each, so that a small network never waits for a large one.

// lane admits some turns at once.
type lane chan struct{}

func newLane() lane { return make(lane, 2*runtime.GOMAXPROCS(0)) }

// manyNodes is how many nodes make a VNet a large one.
const manyNodes = 200

// turn takes a turn for f; f is not called if ctx ends before.
func (l lane) turn(ctx context.Context, f func() error) error {
	select {
	case l <- struct{}{}: // the runtime serves those that wait in their order
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-l }()
	if err := ctx.Err(); err != nil {
		return err
	}
	return f()
}

// lane gives the lane of a plan's worker.
func (a *Agent) lane(p *plan.Plan) lane {
	if len(p.Nodes) >= manyNodes {
		return a.large
	}
	if p.Empty() { // what is to go tells how much it is
		if states, err := a.containers.List(context.Background(), p.VNet); err == nil && len(states) >= manyNodes {
			return a.large
		}
	}
	return a.small
}
