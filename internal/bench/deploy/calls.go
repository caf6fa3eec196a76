package deploy

import (
	"context"
	"errors"
	"fmt"
	"os"

	"connectrpc.com/connect"

	trellisv1 "trellis/api/trellis/v1"
	"trellis/internal/wire"
)

// errCut is the error of a stream that ended properly and without a result.
var errCut = errors.New("the service ended its answer without a result; its log says why")

// bounded gives ctx with the time limit of one call, which Connect tells the
// service too.
func (m *measurement) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if m.Timeout <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, m.Timeout)
}

// apply brings a network up, or to another description, and waits until it has
// converged. Phase is called with each phase at its first message.
func (m *measurement) apply(ctx context.Context, c Case, phase func(string)) (*trellisv1.ApplyResult, error) {
	ctx, cancel := m.bounded(ctx)
	defer cancel()
	stream, err := m.client.Apply(ctx, connect.NewRequest(&trellisv1.ApplyRequest{Vnet: wire.ToProto(c.VNet), Wait: true}))
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	last := ""
	for stream.Receive() {
		switch e := stream.Msg().Event.(type) {
		case *trellisv1.ApplyResponse_Progress:
			if p := e.Progress.GetPhase(); p != last && phase != nil {
				phase(p)
			}
			last = e.Progress.GetPhase()
			m.report(e.Progress)
		case *trellisv1.ApplyResponse_Result:
			return e.Result, nil
		}
	}
	if err := stream.Err(); err != nil {
		return nil, err
	}
	return nil, errCut
}

// delete takes the network down.
func (m *measurement) delete(ctx context.Context) error {
	ctx, cancel := m.bounded(ctx)
	defer cancel()
	return remove(ctx, m.client, &trellisv1.DeleteRequest{Name: m.c.VNet.Name}, m.report)
}

// remove takes networks down and returns when nothing of them is left.
func remove(ctx context.Context, client Client, what *trellisv1.DeleteRequest, report func(*trellisv1.Progress)) error {
	stream, err := client.Delete(ctx, connect.NewRequest(what))
	if err != nil {
		return err
	}
	defer stream.Close()
	for stream.Receive() {
		switch e := stream.Msg().Event.(type) {
		case *trellisv1.DeleteResponse_Progress:
			report(e.Progress)
		case *trellisv1.DeleteResponse_Result:
			return nil
		}
	}
	if err := stream.Err(); err != nil {
		return err
	}
	return errCut
}

// here reports whether the service runs on this machine, where its process can be
// looked at: it names this host, and a process that exists.
func here(info *trellisv1.InfoResponse) bool {
	host, err := os.Hostname()
	if err != nil || info.GetHost() != host || info.GetPid() <= 0 {
		return false
	}
	_, err = os.Stat(fmt.Sprintf("/proc/%d/stat", info.GetPid()))
	return err == nil
}
