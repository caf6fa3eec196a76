package agentapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
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

// ExecStream is the service's end of an Exec call.
type ExecStream = connect.BidiStream[trellisv1.ExecRequest, trellisv1.ExecResponse]

// ReceiveExec takes the first message of an Exec call, which says what to run.
func ReceiveExec(stream *ExecStream) (*trellisv1.ExecStart, error) {
	first, err := stream.Receive()
	if err != nil {
		return nil, fmt.Errorf("receive what to execute: %w", err)
	}
	if start := first.GetStart(); start != nil {
		return start, nil
	}
	return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("the first message of an Exec is not a start"))
}

// ServeExec starts the process through the agent, and carries the rest of an
// Exec call: the stream's messages to the process, and its output to the stream.
// It returns when the process has ended, which it does at the latest after the
// client is gone.
func ServeExec(ctx context.Context, agent Agent, start *trellisv1.ExecStart, stream *ExecStream, log *slog.Logger) error {
	out := &execStream{stream: stream}
	defer out.end()
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
	p, err := agent.Exec(ctx, start.Vnet, start.Node, spec)
	if err != nil {
		return err
	}
	if err := out.begin(); err != nil {
		log.Debug("the client of a process is gone", "error", err) // so the process follows
	}
	x := execution{process: p, log: log}
	ended := make(chan struct{})
	var guard sync.WaitGroup
	guard.Go(func() { x.follow(ctx, ended) })
	go x.feed(stream, feed) // ends with the stream, or with stdin
	code, err := p.Wait()
	close(ended)
	guard.Wait()
	if err != nil {
		return fmt.Errorf("execute %q in %s/%s: %w", spec.Argv[0], start.Vnet, start.Node, err)
	}
	return out.send(&trellisv1.ExecResponse{Message: &trellisv1.ExecResponse_ExitCode{ExitCode: int32(code)}})
}

// execution is a process with a client.
type execution struct {
	process Process
	log     *slog.Logger
}

// follow hangs up on the process when its client goes away.
func (x execution) follow(ctx context.Context, ended <-chan struct{}) {
	select {
	case <-ended:
		return
	case <-ctx.Done():
	}
	for _, sig := range []syscall.Signal{syscall.SIGHUP, syscall.SIGKILL} {
		if err := x.process.Signal(sig); err != nil {
			x.log.Debug("signal a process without client", "signal", sig, "error", err)
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
func (x execution) feed(stream *ExecStream, stdin *io.PipeWriter) {
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
				x.log.Debug("input of a process", "error", err)
			}
		case *trellisv1.ExecRequest_StdinClosed:
			stdin.Close()
		case *trellisv1.ExecRequest_Resize:
			if err := x.process.Resize(characters(m.Resize.Rows), characters(m.Resize.Columns)); err != nil {
				x.log.Debug("resize the terminal of a process", "error", err)
			}
		case *trellisv1.ExecRequest_Signal:
			if err := x.process.Signal(syscall.Signal(m.Signal)); err != nil {
				x.log.Debug("signal a process", "signal", m.Signal, "error", err)
			}
		}
	}
}

// characters bounds a terminal's size by what the kernel can hold.
func characters(n uint32) uint16 { return uint16(min(n, math.MaxUint16)) }

// execStream lets two writers send. The first message says that the process has
// started, whoever is the first to know.
type execStream struct {
	mu     sync.Mutex
	stream interface {
		Send(*trellisv1.ExecResponse) error
	}
	started bool
	ended   bool
}

// errExecEnded is what writers get whose call has ended: HTTP's server panics when
// something is sent afterwards.
var errExecEnded = errors.New("the call has ended")

// end has nothing more be sent.
func (s *execStream) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
}

func (s *execStream) begin() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.beginLocked()
}

func (s *execStream) beginLocked() error {
	if s.ended {
		return errExecEnded
	}
	if s.started {
		return nil
	}
	s.started = true
	return s.stream.Send(&trellisv1.ExecResponse{Message: &trellisv1.ExecResponse_Started{Started: true}})
}

func (s *execStream) send(m *trellisv1.ExecResponse) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.beginLocked(); err != nil {
		return err
	}
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
