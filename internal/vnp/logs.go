package vnp

import (
	"context"
	"errors"
	"fmt"

	"connectrpc.com/connect"

	trellisv1 "trellis/api/trellis/v1"
	"trellis/internal/agentapi"
)

// Logs streams what the services of a node have printed.
func (s *Service) Logs(ctx context.Context, req *connect.Request[trellisv1.LogsRequest], stream *connect.ServerStream[trellisv1.LogsResponse]) error {
	m := req.Msg
	if m.Tail < 0 {
		return connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("%d lines: want 0, for all, or more", m.Tail))
	}
	agent, err := s.agentOf(ctx, m.Vnet, m.Node)
	if err != nil {
		return err
	}
	err = agent.Logs(ctx, m.Vnet, m.Node, agentapi.LogQueryOf(m), agentapi.LogSender(stream))
	if err != nil && !errors.Is(err, context.Canceled) {
		return s.fail(err)
	}
	return nil
}

// Restart restarts a service of a node, or the node.
func (s *Service) Restart(ctx context.Context, req *connect.Request[trellisv1.RestartRequest]) (*connect.Response[trellisv1.RestartResponse], error) {
	err := s.control(ctx, req.Msg, "restarted", agentapi.Agent.Restart)
	return connect.NewResponse(&trellisv1.RestartResponse{}), err
}

// StopService ends a service of a node, and has it stay so.
func (s *Service) StopService(ctx context.Context, req *connect.Request[trellisv1.StopServiceRequest]) (*connect.Response[trellisv1.StopServiceResponse], error) {
	err := s.control(ctx, req.Msg, "stopped", agentapi.Agent.StopService)
	return connect.NewResponse(&trellisv1.StopServiceResponse{}), err
}

// StartService starts a service of a node that was stopped.
func (s *Service) StartService(ctx context.Context, req *connect.Request[trellisv1.StartServiceRequest]) (*connect.Response[trellisv1.StartServiceResponse], error) {
	err := s.control(ctx, req.Msg, "started", agentapi.Agent.StartService)
	return connect.NewResponse(&trellisv1.StartServiceResponse{}), err
}

// serviceRequest is a request that names a service of a node.
type serviceRequest interface {
	GetVnet() string
	GetNode() string
	GetService() string
}

// control has the agent of a node do something to one of its services; done is what it
// has done then, for the log. Its error has a code.
func (s *Service) control(
	ctx context.Context, m serviceRequest, done string,
	do func(agent agentapi.Agent, ctx context.Context, vnet, node, service string) error,
) error {
	agent, err := s.agentOf(ctx, m.GetVnet(), m.GetNode())
	if err != nil {
		return err
	}
	if err := do(agent, ctx, m.GetVnet(), m.GetNode(), m.GetService()); err != nil {
		return s.fail(err)
	}
	s.log.Info(done, "vnet", m.GetVnet(), "node", m.GetNode(), "service", m.GetService())
	return nil
}

// agentOf gives the agent of the substrate node that a node is placed on. Its error
// has a code.
func (s *Service) agentOf(ctx context.Context, vnet, node string) (agentapi.Agent, error) {
	rec, err := s.record(ctx, vnet)
	if err != nil {
		return nil, s.fail(err)
	}
	if err := knowNode(rec, node); err != nil {
		return nil, err
	}
	agent, err := s.agents(ctx, s.hostOf(rec, node))
	if err != nil {
		return nil, s.fail(err)
	}
	return agent, nil
}
