package vnp

import (
	"context"
	"maps"
	"slices"
	"time"

	"connectrpc.com/connect"

	trellisv1 "trellis/api/trellis/v1"
	"trellis/internal/pip"
	"trellis/internal/store"
	"trellis/internal/wire"
)

// SetLink changes a running link in place, and returns when the change is in
// the kernel.
func (s *Service) SetLink(ctx context.Context, req *connect.Request[trellisv1.SetLinkRequest]) (*connect.Response[trellisv1.SetLinkResponse], error) {
	m := req.Msg
	c := pip.LinkChange{Rate: m.Rate, Delay: duration(m.DelayNs), Jitter: duration(m.JitterNs), Loss: m.Loss, Down: m.Down}
	if c == (pip.LinkChange{}) {
		return nil, invalid("the request changes nothing; give at least one of rate, delay, jitter, loss, up, down")
	}
	if m.Node == "" && m.Interface != "" {
		return nil, invalid("the request names the interface %q without its node", m.Interface)
	}
	c.Node, c.Interface = m.Node, m.Interface
	began := time.Now()
	g, link, err := s.provider.SetLink(ctx, m.Vnet, m.Link, c, s.prepare)
	if err != nil {
		return nil, s.fail(s.suggest(ctx, m.Vnet, err))
	}
	// The others have nothing to do, and need not be there.
	ends := map[string]bool{}
	for i := range link.Endpoints {
		ends[s.hostOf(g.Record, link.Endpoints[i].Node)] = true
	}
	w := wait{s: s, rec: g.Record, began: began, hosts: slices.Sorted(maps.Keys(ends)), until: store.PhaseCreated}
	if _, err := w.run(ctx); err != nil {
		return nil, s.fail(err)
	}
	return connect.NewResponse(&trellisv1.SetLinkResponse{Link: wire.LinkToProto(link)}), nil
}

func duration(ns *int64) *time.Duration {
	if ns == nil {
		return nil
	}
	d := time.Duration(*ns)
	return &d
}
