package vnp

import (
	"context"
	"fmt"
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
	records, err := s.store.VNets(ctx)
	if err != nil {
		return nil, s.fail(err)
	}
	hosts, err := s.store.Hosts(ctx)
	if err != nil {
		return nil, s.fail(err)
	}
	out := &trellisv1.ListResponse{}
	for _, rec := range records {
		statuses, err := s.store.Statuses(ctx, rec.Name())
		if err != nil {
			return nil, s.fail(err)
		}
		out.Vnets = append(out.Vnets, s.summary(rec, statuses, s.absentOf(hosts, rec.Hosts)))
	}
	return connect.NewResponse(out), nil
}

// Get tells one VNet in full, or one node of it.
func (s *Service) Get(ctx context.Context, req *connect.Request[trellisv1.GetRequest]) (*connect.Response[trellisv1.GetResponse], error) {
	name, node := req.Msg.Name, req.Msg.Node
	rec, err := s.store.VNet(ctx, name)
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
	absent := s.absent(ctx, rec.Hosts, nil)
	figures := s.figures(ctx, rec)
	out := &trellisv1.GetResponse{Summary: s.summary(rec, statuses, absent), Vnet: wire.ToProto(rec.Spec), Messages: figures.messages()}
	for i := range rec.Spec.Nodes {
		if n := rec.Spec.Nodes[i].Name; node == "" || n == node {
			status := s.nodeStatus(rec, n, statuses, absent)
			if status.State == nodeUnreported {
				status.State = store.NodeStarting
			}
			figures.fill(status)
			out.Nodes = append(out.Nodes, status)
		}
	}
	for i := range rec.Spec.Links {
		if l := &rec.Spec.Links[i]; node == "" || touches(l, node) {
			out.Links = append(out.Links, figures.link(l, func(node string) string { return s.hostOf(rec, node) }))
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

// summary puts a record and the agents' reports on it together.
func (s *Service) summary(rec *store.VNetRecord, statuses map[string]*store.Status, absent map[string]store.HostState) *trellisv1.Summary {
	out := &trellisv1.Summary{
		Name:        rec.Name(),
		Nodes:       int32(len(rec.Spec.Nodes)),
		Links:       int32(len(rec.Spec.Links)),
		Routing:     string(rec.Spec.Routing.Protocol),
		CreatedUnix: rec.Created.Unix(),
		Hosts:       s.holders(rec),
	}
	var down []string
	for i := range rec.Spec.Nodes {
		n := s.nodeStatus(rec, rec.Spec.Nodes[i].Name, statuses, absent)
		switch n.State {
		case store.NodeRunning:
			out.NodesUp++
		case nodeUnreported, nodeUnknown:
		default:
			down = append(down, n.Name)
		}
	}
	current, routers, converged := true, 0, 0
	for _, host := range s.holders(rec) {
		st := statuses[host]
		if _, gone := absent[host]; gone {
			continue
		}
		if st == nil || st.Generation != rec.Generation || st.Phase == store.PhaseRemoving || st.Phase == store.PhaseCreating {
			current = false
			continue
		}
		routers += st.Routers
		converged += st.Converged
	}
	failed := s.failed(rec, statuses)
	trouble := troubles(s.holders(rec), statuses)
	switch {
	case failed != "":
		out.State, out.Message = stateFailed, failed
	case rec.State == store.Removing:
		out.State = stateRemoving
		if len(absent) > 0 {
			out.Message = vanished(absent) + "; what is there is removed when trellis serve runs there again"
		}
	case !current:
		out.State = stateCreating
	case len(absent) > 0:
		out.State, out.Message = stateDegraded, vanished(absent)
	case len(down) > 0:
		out.State, out.Message = stateDegraded, "not running: "+some(down)
	case trouble != "":
		out.State, out.Message = stateDegraded, trouble
	case converged < routers:
		out.State = stateConverging
		out.Message = fmt.Sprintf("%d of %d nodes have all routes", converged, routers)
	default:
		out.State = stateRunning
	}
	return out
}

// failed says which substrate nodes have given up on what is wanted now, and why.
func (s *Service) failed(rec *store.VNetRecord, statuses map[string]*store.Status) string {
	var out []string
	for _, host := range rec.Hosts {
		st := statuses[host]
		if st == nil || st.Phase != store.PhaseFailed || st.Generation != rec.Generation {
			continue
		}
		text := st.Error
		if on := s.on(rec, host); on != "" {
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
func (s *Service) nodeStatus(rec *store.VNetRecord, name string, statuses map[string]*store.Status, absent map[string]store.HostState) *trellisv1.NodeStatus {
	out := &trellisv1.NodeStatus{Name: name, Host: s.hostOf(rec, name), State: nodeUnreported}
	if st := statuses[out.Host]; st != nil {
		if n, known := st.Nodes[name]; known {
			out.State, out.Pid, out.Restarts, out.Message = n.State, int32(n.Pid), int32(n.Restarts), n.Message
		}
	}
	if h, gone := absent[out.Host]; gone {
		out.State, out.Message = nodeUnknown, h.Silence()
	}
	return out
}
