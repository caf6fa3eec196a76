package vnp

import (
	"context"

	"connectrpc.com/connect"

	trellisv1 "trellis/api/trellis/v1"
	"trellis/internal/agentapi"
)

// Exec runs a command in a node, with the client's input, output and, where it
// has one, terminal. A client that goes away takes the process with it.
func (s *Service) Exec(ctx context.Context, stream *connect.BidiStream[trellisv1.ExecRequest, trellisv1.ExecResponse]) error {
	start, err := agentapi.ReceiveExec(stream)
	if err != nil {
		return err
	}
	agent, err := s.agentOf(ctx, start.Vnet, start.Node)
	if err != nil {
		return err
	}
	return s.fail(agentapi.ServeExec(ctx, agent, start, stream, s.log))
}
