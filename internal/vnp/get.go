package vnp

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"connectrpc.com/connect"

	trellisv1 "trellis/api/trellis/v1"
	"trellis/internal/store"
	"trellis/internal/vnet"
	"trellis/internal/wire"
)

// States of a VNet in a summary.
const (
	stateCreating   = "creating"
	stateConverging = "converging"
	stateRunning    = "running"
	stateDegraded   = "degraded"
	stateRemoving   = "removing"
	stateFailed     = "failed"
)

// List tells all VNets.
func (s *Service) List(ctx context.Context, _ *connect.Request[trellisv1.ListRequest]) (*connect.Response[trellisv1.ListResponse], error) {
	summaries, err := s.store.Summaries(ctx)
	if err != nil {
		return nil, s.fail(err)
	}
	hosts, err := s.store.Hosts(ctx)
	if err != nil {
		return nil, s.fail(err)
	}
	statuses, err := s.store.AllStatuses(ctx)
	if err != nil {
		return nil, s.fail(err)
	}
	out := &trellisv1.ListResponse{}
	for _, sum := range summaries {
		out.Vnets = append(out.Vnets, s.summary(sum, statuses[sum.Name], s.offlineAmong(hosts, sum.Hosts)))
	}
	return connect.NewResponse(out), nil
}

// Get tells one VNet in full, or one node of it.
func (s *Service) Get(ctx context.Context, req *connect.Request[trellisv1.GetRequest]) (*connect.Response[trellisv1.GetResponse], error) {
	name, node := req.Msg.Name, req.Msg.Node
	rec, err := s.record(ctx, name)
	if err != nil {
		return nil, s.fail(err)
	}
	if node != "" {
		if err := knowNode(rec, node); err != nil {
			return nil, err
		}
	}
	statuses, err := s.store.Statuses(ctx, name)
	if err != nil {
		return nil, s.fail(err)
	}
	offline := s.offline(ctx, rec.Hosts, nil)
	stats := s.stats(ctx, rec)
	stats.live(func(node string) string { return s.hostOf(rec, node) }, statuses)
	out := &trellisv1.GetResponse{Summary: s.summary(rec.Summary(), statuses, offline), Vnet: wire.ToProto(rec.Spec), Messages: stats.messages()}
	for i := range rec.Spec.Nodes {
		if n := rec.Spec.Nodes[i].Name; node == "" || n == node {
			status := s.nodeStatus(rec, n, statuses, offline)
			if status.State == nodeUnreported {
				status.State = store.NodeStarting
			}
			stats.fill(status)
			out.Nodes = append(out.Nodes, status)
		}
	}
	for i := range rec.Spec.Links {
		if l := &rec.Spec.Links[i]; node == "" || touches(l, node) {
			out.Links = append(out.Links, stats.link(l, func(node string) string { return s.hostOf(rec, node) }, offline))
		}
	}
	return connect.NewResponse(out), nil
}

// knowNode fails for a node that is not in the description.
func knowNode(rec *store.VNetRecord, node string) error {
	if rec.Spec.Node(node) != nil {
		return nil
	}
	names := make([]string, len(rec.Spec.Nodes))
	for i := range rec.Spec.Nodes {
		names[i] = rec.Spec.Nodes[i].Name
	}
	hint := fmt.Sprintf("`trellis show %s` lists its nodes", rec.Name())
	if near := vnet.Nearest(node, names); near != "" {
		hint = fmt.Sprintf("did you mean %q?", near)
	}
	return connect.NewError(connect.CodeNotFound, fmt.Errorf("VNet %s has no node %q; %s", rec.Name(), node, hint))
}

func touches(l *vnet.Link, node string) bool {
	for _, e := range l.Endpoints {
		if e.Node == node {
			return true
		}
	}
	return false
}

// summary puts what is stored of a VNet and the agents' reports on it together.
func (s *Service) summary(sum store.Summary, statuses map[string]*store.Status, offline map[string]store.HostState) *trellisv1.Summary {
	holders := sum.Holders()
	out := &trellisv1.Summary{
		Name: sum.Name, Nodes: int32(sum.Nodes), Links: int32(sum.Links), Routing: sum.Routing,
		CreatedUnix: sum.Created.Unix(), Hosts: holders,
	}
	var down, faults []string
	current, quiet, routers, converged := true, true, 0, 0
	retrying := ""
	for _, host := range holders {
		st := statuses[host]
		if _, gone := offline[host]; gone {
			continue
		}
		if st != nil {
			for name, n := range st.Nodes {
				switch n.State {
				case store.NodeRunning:
					out.NodesUp++
				case store.NodeDegraded:
					out.NodesUp++
					faults = append(faults, name+": "+n.Message)
				default:
					down = append(down, name)
				}
			}
		}
		if st == nil || st.Generation != sum.Generation || st.Phase == store.PhaseRemoving || st.Phase == store.PhaseCreating {
			current = false
			if st != nil && st.Attempt > 0 {
				retrying = fmt.Sprintf("retrying%s: %s (attempt %d)", s.onOf(sum.Hosts, host), st.Error, st.Attempt+1)
			} else if st != nil && st.Doing != "" && retrying == "" {
				retrying = st.Doing
			}
			continue
		}
		routers += st.Routers
		converged += st.Converged
		quiet = quiet && st.Phase == store.PhaseConverged
	}
	slices.Sort(down)
	slices.Sort(faults)
	failed := s.failed(sum, statuses)
	degraded := degradedPaths(holders, statuses)
	switch {
	case failed != "":
		out.State, out.Message = stateFailed, failed
	case sum.State == store.Removing:
		out.State = stateRemoving
		if len(offline) > 0 {
			out.Message = vanished(offline) + "; what is there is removed when trellis serve runs there again"
		}
	case !current:
		out.State, out.Message = stateCreating, retrying
	case len(offline) > 0:
		out.State, out.Message = stateDegraded, vanished(offline)
	case len(down) > 0:
		out.State, out.Message = stateDegraded, "not running: "+some(down)
	case degraded != "":
		out.State, out.Message = stateDegraded, degraded
	case len(faults) > 0:
		out.State, out.Message = stateDegraded, faults[0]
		if len(faults) > 1 {
			out.Message += fmt.Sprintf(" (and %d other nodes)", len(faults)-1)
		}
	case converged < routers && quiet:
		out.State = stateRunning
		out.Message = fmt.Sprintf("%d of %d nodes have routes to all others, and nothing changes any more", converged, routers)
	case converged < routers:
		out.State = stateConverging
		out.Message = fmt.Sprintf("%d of %d nodes have all routes", converged, routers)
	default:
		out.State = stateRunning
	}
	return out
}

// failed says which substrate nodes have given up on what is wanted now, and why.
func (s *Service) failed(sum store.Summary, statuses map[string]*store.Status) string {
	var out []string
	for _, host := range sum.Hosts {
		st := statuses[host]
		if st == nil || st.Phase != store.PhaseFailed || st.Generation != sum.Generation {
			continue
		}
		text := st.Error
		if on := s.onOf(sum.Hosts, host); on != "" {
			text = strings.TrimPrefix(on, " ") + ": " + text
		}
		out = append(out, text)
	}
	return strings.Join(out, "; ")
}

// some joins the first few of a list.
func some(names []string) string {
	const most = 5
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

// What a node's state is when no agent tells it.
const (
	nodeUnreported = ""        // there is no report on it yet; told as starting
	nodeUnknown    = "unknown" // its substrate node has vanished, and it may run
)

// nodeStatus is what the agent of the node's substrate node has reported. The
// state may be nodeUnreported.
func (s *Service) nodeStatus(rec *store.VNetRecord, name string, statuses map[string]*store.Status, offline map[string]store.HostState) *trellisv1.NodeStatus {
	out := &trellisv1.NodeStatus{Name: name, Host: s.hostOf(rec, name), State: nodeUnreported}
	if st := statuses[out.Host]; st != nil {
		if n, known := st.Nodes[name]; known {
			out.State, out.Pid, out.Restarts, out.Message = n.State, int32(n.Pid), int32(n.Restarts), n.Message
			out.Repairs = int32(n.Repairs)
		}
	}
	if h, gone := offline[out.Host]; gone {
		out.State, out.Message = nodeUnknown, h.Silence()
	}
	return out
}
