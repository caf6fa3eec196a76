package vnp

import (
	"context"
	"errors"
	"fmt"

	"connectrpc.com/connect"

	trellisv1 "trellis/api/trellis/v1"
	"trellis/internal/agentapi"
	"trellis/internal/store"
	"trellis/internal/vnet"
)

// Capture streams a pcap file of one interface's frames.
func (s *Service) Capture(ctx context.Context, req *connect.Request[trellisv1.CaptureRequest], stream *connect.ServerStream[trellisv1.CaptureResponse]) error {
	m := req.Msg
	rec, err := s.record(ctx, m.Vnet)
	if err != nil {
		return s.fail(err)
	}
	if err := knowNode(rec, m.Node); err != nil {
		return err
	}
	if err := knowInterface(rec, m.Node, m.Interface); err != nil {
		return err
	}
	sub, err := s.agents(ctx, s.hostOf(rec, m.Node))
	if err != nil {
		return s.fail(err)
	}
	err = sub.Capture(ctx, m.Vnet, m.Node, m.Interface, m.Snaplen, m.Count, agentapi.CaptureWriter{Stream: stream})
	if err != nil && !errors.Is(err, context.Canceled) {
		return s.fail(fmt.Errorf("capture %s/%s:%s: %w", m.Vnet, m.Node, m.Interface, err))
	}
	return nil
}

// knowInterface fails for an interface that the node does not have.
func knowInterface(rec *store.VNetRecord, node, name string) error {
	var names []string
	for i := range rec.Spec.Links {
		for _, e := range rec.Spec.Links[i].Endpoints {
			if e.Node != node {
				continue
			}
			if e.Name == name {
				return nil
			}
			names = append(names, e.Name)
		}
	}
	hint := "it has none"
	if len(names) > 0 {
		hint = "it has " + some(names)
		if near := vnet.Nearest(name, names); near != "" {
			hint = fmt.Sprintf("did you mean %q?", near)
		}
	}
	return connect.NewError(connect.CodeNotFound, fmt.Errorf("node %s/%s has no interface %q; %s", rec.Name(), node, name, hint))
}
