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
	out := &trellisv1.ListResponse{}
	for _, rec := range records {
		st, err := s.status(ctx, rec.Name())
		if err != nil {
			return nil, s.fail(err)
		}
		out.Vnets = append(out.Vnets, summary(rec, st))
	}
	return connect.NewResponse(out), nil
}

// status is the agent's report on a VNet; an empty one before the first.
func (s *Service) status(ctx context.Context, name string) (*store.Status, error) {
	statuses, err := s.store.Statuses(ctx, name)
	if err != nil {
		return nil, err
	}
	if st := statuses[s.host]; st != nil {
		return st, nil
	}
	return &store.Status{}, nil
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
	st, err := s.status(ctx, name)
	if err != nil {
		return nil, s.fail(err)
	}
	out := &trellisv1.GetResponse{Summary: summary(rec, st), Vnet: wire.ToProto(rec.Spec)}
	stats, err := s.substrate.NodeStats(ctx, name)
	if err != nil {
		return nil, s.fail(fmt.Errorf("read the nodes' figures of VNet %s: %w", name, err))
	}
	ports, err := s.substrate.PortStats(ctx, name)
	if err != nil {
		return nil, s.fail(fmt.Errorf("read the interfaces' counters of VNet %s: %w", name, err))
	}
	for i := range rec.Spec.Nodes {
		if n := rec.Spec.Nodes[i].Name; node == "" || n == node {
			out.Nodes = append(out.Nodes, s.nodeStatus(n, st, stats[n]))
		}
	}
	for i := range rec.Spec.Links {
		if l := &rec.Spec.Links[i]; node == "" || touches(l, node) {
			out.Links = append(out.Links, linkStatus(l, ports))
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

// summary puts a record and the agent's report on it together.
func summary(rec *store.VNetRecord, st *store.Status) *trellisv1.Summary {
	out := &trellisv1.Summary{
		Name:        rec.Name(),
		Nodes:       int32(len(rec.Spec.Nodes)),
		Links:       int32(len(rec.Spec.Links)),
		Routing:     string(rec.Spec.Routing.Protocol),
		CreatedUnix: rec.Created.Unix(),
		Message:     st.Error,
	}
	var down []string
	for i := range rec.Spec.Nodes {
		n := rec.Spec.Nodes[i].Name
		state, known := st.Nodes[n]
		if state.State == store.NodeRunning {
			out.NodesUp++
		} else if known {
			down = append(down, n)
		}
	}
	current := st.Generation == rec.Generation
	switch {
	case current && st.Phase == store.PhaseFailed:
		out.State = stateFailed
	case rec.State == store.Removing:
		out.State = stateRemoving
	case !current || st.Phase == store.PhaseRemoving || st.Phase == store.PhaseCreating:
		out.State = stateCreating
	case len(down) > 0:
		out.State = stateDegraded
		out.Message = "not running: " + some(down)
	case st.Converged < st.Routers:
		out.State = stateConverging
		out.Message = fmt.Sprintf("%d of %d nodes have all routes", st.Converged, st.Routers)
	default:
		out.State = stateRunning
	}
	return out
}

// some joins the first few of a list.
func some(names []string) string {
	const most = 5
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

func (s *Service) nodeStatus(name string, st *store.Status, stats NodeStats) *trellisv1.NodeStatus {
	state, known := st.Nodes[name]
	if !known {
		state.State = store.NodeStarting
	}
	out := &trellisv1.NodeStatus{
		Name: name, State: state.State, Pid: int32(state.Pid), Restarts: int32(state.Restarts),
		Host: s.host, Memory: stats.Memory, CpuSeconds: stats.CPU, Message: state.Message,
	}
	for _, sv := range stats.Services {
		out.Services = append(out.Services, &trellisv1.ServiceStatus{
			Name: sv.Name, State: sv.State, Pid: int32(sv.Pid), Restarts: int32(sv.Restarts),
		})
	}
	return out
}

func linkStatus(l *vnet.Link, ports map[string]PortStats) *trellisv1.LinkStatus {
	out := &trellisv1.LinkStatus{Name: l.Name, Type: string(l.Type), State: "up"}
	if l.Down {
		out.State = "down"
	}
	for _, e := range l.Endpoints {
		p := ports[e.Node+":"+e.Name]
		out.Ports = append(out.Ports, &trellisv1.PortStatus{
			Node: e.Node, Interface: e.Name, Device: p.Device,
			RxPackets: p.RxPackets, RxBytes: p.RxBytes, TxPackets: p.TxPackets, TxBytes: p.TxBytes, Drops: p.Drops,
		})
	}
	return out
}
