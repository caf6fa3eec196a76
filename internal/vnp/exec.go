package vnp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"syscall"
	"time"

	"connectrpc.com/connect"

	trellisv1 "trellis/api/trellis/v1"
)

// hangup is how long a process has between the SIGHUP that tells it that its
// client is gone, and the SIGKILL that ends it.
const hangup = 2 * time.Second

// Exec runs a command in a node, with the client's input, output and, where it
// has one, terminal. A client that goes away takes the process with it.
func (s *Service) Exec(ctx context.Context, stream *connect.BidiStream[trellisv1.ExecRequest, trellisv1.ExecResponse]) error {
	first, err := stream.Receive()
	if err != nil {
		return fmt.Errorf("receive what to execute: %w", err)
	}
	start := first.GetStart()
	if start == nil {
		return invalid("the first message of an Exec is not a start")
	}
	rec, err := s.store.VNet(ctx, start.Vnet)
	if err != nil {
		return s.fail(err)
	}
	if err := knowNode(rec, start.Node); err != nil {
		return err
	}
	out := &execStream{stream: stream}
	stdin, feed := io.Pipe()
	defer stdin.Close() // frees a feed that is not read any more
	spec := ExecSpec{
		Argv: start.Argv, Env: start.Env, TTY: start.Tty, Stdin: stdin,
		Stdout: execWriter{out, func(b []byte) *trellisv1.ExecResponse {
			return &trellisv1.ExecResponse{Message: &trellisv1.ExecResponse_Stdout{Stdout: b}}
		}},
		Stderr: execWriter{out, func(b []byte) *trellisv1.ExecResponse {
			return &trellisv1.ExecResponse{Message: &trellisv1.ExecResponse_Stderr{Stderr: b}}
		}},
	}
	if len(spec.Argv) == 0 {
		spec.Argv = []string{"/bin/sh"}
	}
	if start.Term != "" {
		spec.Env = append(spec.Env, "TERM="+start.Term)
	}
	if start.Size != nil {
		spec.Rows, spec.Cols = characters(start.Size.Rows), characters(start.Size.Columns)
	}
	p, err := s.substrate.Exec(ctx, start.Vnet, start.Node, spec)
	if err != nil {
		return s.fail(err)
	}
	ended := make(chan struct{})
	var guard sync.WaitGroup
	guard.Go(func() { s.follow(ctx, p, ended) })
	go s.feed(stream, p, feed) // ends with the stream, or with stdin
	code, err := p.Wait()
	close(ended)
	guard.Wait()
	if err != nil {
		return s.fail(fmt.Errorf("execute %q in %s/%s: %w", spec.Argv[0], start.Vnet, start.Node, err))
	}
	return out.send(&trellisv1.ExecResponse{Message: &trellisv1.ExecResponse_ExitCode{ExitCode: int32(code)}})
}

// follow hangs up on the process when its client goes away.
func (s *Service) follow(ctx context.Context, p Process, ended <-chan struct{}) {
	select {
	case <-ended:
		return
	case <-ctx.Done():
	}
	for _, sig := range []syscall.Signal{syscall.SIGHUP, syscall.SIGKILL} {
		if err := p.Signal(sig); err != nil {
			s.log.Debug("signal a process without client", "signal", sig, "error", err)
		}
		select {
		case <-ended:
			return
		case <-time.After(hangup):
		}
	}
}

// feed hands the client's messages to the process. Whatever ends it ends the
// process's input.
func (s *Service) feed(stream *connect.BidiStream[trellisv1.ExecRequest, trellisv1.ExecResponse], p Process, stdin *io.PipeWriter) {
	defer stdin.Close()
	for {
		m, err := stream.Receive()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				stdin.CloseWithError(err)
			}
			return
		}
		switch m := m.Message.(type) {
		case *trellisv1.ExecRequest_Stdin:
			// A process that has closed its input does not need the rest; its
			// signals and its window still matter.
			if _, err := stdin.Write(m.Stdin); err != nil {
				s.log.Debug("input of a process", "error", err)
			}
		case *trellisv1.ExecRequest_StdinClosed:
			stdin.Close()
		case *trellisv1.ExecRequest_Resize:
			if err := p.Resize(characters(m.Resize.Rows), characters(m.Resize.Columns)); err != nil {
				s.log.Debug("resize the terminal of a process", "error", err)
			}
		case *trellisv1.ExecRequest_Signal:
			if err := p.Signal(syscall.Signal(m.Signal)); err != nil {
				s.log.Debug("signal a process", "signal", m.Signal, "error", err)
			}
		}
	}
}

// characters bounds a terminal's size by what the kernel can hold.
func characters(n uint32) uint16 { return uint16(min(n, math.MaxUint16)) }

// execStream lets two writers send.
type execStream struct {
	mu     sync.Mutex
	stream *connect.BidiStream[trellisv1.ExecRequest, trellisv1.ExecResponse]
}

func (s *execStream) send(m *trellisv1.ExecResponse) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stream.Send(m)
}

// execWriter sends what is written as one kind of message.
type execWriter struct {
	to   *execStream
	wrap func([]byte) *trellisv1.ExecResponse
}

func (w execWriter) Write(b []byte) (int, error) {
	if err := w.to.send(w.wrap(b)); err != nil {
		return 0, err
	}
	return len(b), nil
}
