package vnp

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	trellisv1 "trellis/api/trellis/v1"
	"trellis/internal/plan"
	"trellis/internal/routing"
	"trellis/internal/vnet"
)

// What is worth a sentence beforehand.
const (
	largeNodes  = 200
	largeMemory = 2 << 30
	// busyRouters is how many routers with daemons a core starts and keeps without
	// anybody noticing.
	busyRouters = 50
)

// sendEstimate sends the estimate, where it is worth a sentence.
func (s *Service) sendEstimate(ctx context.Context, v *vnet.VNet, plans map[string]*plan.Plan, send func(*trellisv1.ApplyResponse) error) error {
	e := s.estimate(ctx, v, plans)
	if e.Summary == "" {
		return nil
	}
	return send(&trellisv1.ApplyResponse{Event: &trellisv1.ApplyResponse_Estimate{Estimate: e}})
}

// estimate says what a network is expected to take of the substrate nodes. It is
// a warning and no reservation: the plans are admitted.
func (s *Service) estimate(ctx context.Context, v *vnet.VNet, plans map[string]*plan.Plan) *trellisv1.Estimate {
	hosts, err := s.store.Hosts(ctx)
	if err != nil {
		hosts = nil // nothing to compare with
	}
	out := &trellisv1.Estimate{}
	cores := map[string]float64{}
	placement := map[string]string{}
	machines := 0
	for _, host := range slices.Sorted(maps.Keys(plans)) {
		p := plans[host]
		if p.Empty() {
			continue
		}
		machines++
		f := p.Footprint()
		out.Nodes += int32(len(p.Nodes))
		out.Memory += f.Memory
		out.Processes += int32(f.Processes)
		for i := range p.Nodes {
			placement[p.Nodes[i].Name] = host
		}
		h := hosts[host]
		cores[host] = h.CPU
		if h.Memory > 0 && f.Memory > h.Memory {
			out.Warnings = append(out.Warnings, fmt.Sprintf("%s has %s of memory, and its %d nodes are likely to take %s: they may be killed for want of it; leave nodes or an address family out, or use more machines",
				host, bytesText(h.Memory), len(p.Nodes), bytesText(f.Memory)))
		}
	}
	load := routing.NewLoad(v, placement, cores)
	timers := routing.DescribeTimers(v, load)
	if len(out.Warnings) == 0 && timers == "" && out.Nodes < largeNodes && out.Memory < largeMemory {
		return out
	}
	where := "on this machine"
	if machines > 1 {
		where = fmt.Sprintf("on %d machines", machines)
	} else if _, here := plans[s.host]; !here {
		where = "on one machine"
	}
	text := []string{fmt.Sprintf("%d nodes take about %s of memory and %d processes %s", out.Nodes, bytesText(out.Memory), out.Processes, where)}
	if timers != "" {
		text = append(text, timers)
	}
	if load.Cores > 0 && float64(load.Busiest) > busyRouters*load.Cores {
		text = append(text, "routes take minutes to be learned")
	}
	out.Summary = strings.Join(text, "; ")
	return out
}

// bytesText writes a number of bytes for people.
func bytesText(n int64) string {
	if n >= 1<<30 {
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	}
	return fmt.Sprintf("%d MiB", n>>20)
}
