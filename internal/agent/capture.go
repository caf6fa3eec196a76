package agent

import (
	"context"
	"io"
	"time"

	"trellis/internal/substrate/dataplane"
	"trellis/internal/substrate/netns"
	"trellis/internal/substrate/port"
	"trellis/internal/substrate/probe"
)

// Capture implements [agentapi.Agent]. What the fast path carries past the node's
// packet sockets is copied by its program.
func (a *Agent) Capture(ctx context.Context, vnet, node, iface string, snaplen uint32, count uint64, w io.Writer) error {
	s, err := a.state(vnet, node)
	if err != nil {
		return err
	}
	ns, err := netns.OfPid(s.Pid)
	if err != nil {
		return err
	}
	defer ns.Close()
	var fast []probe.Source
	index, err := a.receiving(vnet, node+":"+iface)
	if err != nil {
		return err
	}
	if index != 0 {
		fast = append(fast, func(ctx context.Context, each func(time.Time, int, []byte)) (missed uint64, err error) {
			err = a.paths.Tap(ctx, index, int(snaplen), func(f dataplane.Frame) {
				missed += f.Lost
				each(f.Time, f.Length, f.Data)
			})
			return missed, err
		})
	}
	return probe.Capture(ctx, ns.FD(), iface, snaplen, count, w, fast...)
}

// receiving gives the index of an interface's port if the fast path may carry
// its frames; else 0.
func (a *Agent) receiving(vnet, object string) (int, error) {
	if a.paths.FastPathSupported() != nil {
		return 0, nil
	}
	devices, err := a.devices.Of(vnet)
	if err != nil {
		return 0, err
	}
	attached, err := a.paths.Read(vnet)
	if err != nil {
		return 0, err
	}
	for _, d := range devices {
		if d.Object != object || d.Kind != port.KindPort {
			continue
		}
		for _, at := range attached {
			if at.Device == d.Device && at.Index == d.Index && at.TakesXDP {
				return d.Index, nil
			}
		}
	}
	return 0, nil
}
