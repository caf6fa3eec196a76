package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"
	"time"

	"connectrpc.com/connect"

	trellisv1 "trellis/api/trellis/v1"
	"trellis/internal/agentapi"
)

// chunk is how much of a process's input goes into one message, in bytes.
const chunk = 32 << 10

// process is a process in a node of another substrate node.
type process struct {
	c      *client
	stream *connect.BidiStreamForClient[trellisv1.ExecRequest, trellisv1.ExecResponse]
	end    context.CancelFunc
	cut    func()
	call   context.Context

	sending sync.Mutex

	done chan struct{} // closed when code and err are set
	code int
	err  error
}

// Exec implements [agentapi.Agent].
func (c *client) Exec(ctx context.Context, vnet, node string, e agentapi.ExecSpec) (agentapi.Process, error) {
	call, end := context.WithCancel(context.WithoutCancel(ctx))
	own, cut := c.apart()
	p := &process{c: c, stream: own.rpc.Exec(call), call: call, end: end, cut: cut, done: make(chan struct{})}
	started := false
	defer func() {
		if !started {
			p.hangUp()
		}
	}()
	// Until it runs, the process has no life of its own. Once the answer has begun,
	// net/http watches the context only after the request has ended.
	stop := context.AfterFunc(ctx, func() { end(); cut() })
	err := p.send(&trellisv1.ExecRequest{Message: &trellisv1.ExecRequest_Start{Start: &trellisv1.ExecStart{
		Vnet: vnet, Node: node, Argv: e.Argv, Env: e.Env, Tty: e.TTY,
		Size: &trellisv1.WindowSize{Rows: uint32(e.Rows), Columns: uint32(e.Cols)},
	}}})
	if err != nil {
		return nil, c.explain(ctx, err)
	}
	first, err := p.stream.Receive()
	if err != nil {
		return nil, c.explain(ctx, ended(err))
	}
	if !first.GetStarted() {
		return nil, fmt.Errorf("on %s: the agent does not say that the command has started", c.host)
	}
	if !stop() {
		return nil, context.Cause(ctx)
	}
	started = true
	go p.feed(e.Stdin)
	go func() {
		defer close(p.done)
		defer p.hangUp()
		p.code, p.err = p.follow(e)
	}()
	return p, nil
}

// hangUp ends the call, and with it a process that still runs.
func (p *process) hangUp() {
	p.end()
	p.cut() // else closing would wait for the agent to end the answer, or to take the input
	_ = p.stream.CloseRequest()
	_ = p.stream.CloseResponse()
}

// send is safe for several goroutines. What is sent after the end is lost, as it
// is on a pipe; Receive says why.
func (p *process) send(m *trellisv1.ExecRequest) error {
	p.sending.Lock()
	defer p.sending.Unlock()
	if err := p.stream.Send(m); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// feed sends the input until it ends, or the process does.
func (p *process) feed(stdin io.Reader) {
	if stdin != nil {
		buf := make([]byte, chunk)
		for {
			n, err := stdin.Read(buf)
			if n > 0 && p.send(&trellisv1.ExecRequest{Message: &trellisv1.ExecRequest_Stdin{Stdin: buf[:n]}}) != nil {
				return
			}
			if err != nil {
				break // to the process, a read error is the end of its input
			}
			select {
			case <-p.done:
				return
			default:
			}
		}
	}
	// Where this fails, Receive says why.
	_ = p.send(&trellisv1.ExecRequest{Message: &trellisv1.ExecRequest_StdinClosed{StdinClosed: true}})
}

// follow writes what the process writes, until it exits.
func (p *process) follow(e agentapi.ExecSpec) (code int, err error) {
	for {
		m, err := p.stream.Receive()
		if err != nil {
			return 0, p.c.explain(p.call, ended(err))
		}
		switch m := m.Message.(type) {
		case *trellisv1.ExecResponse_Stdout:
			_, err = e.Stdout.Write(m.Stdout)
		case *trellisv1.ExecResponse_Stderr:
			_, err = e.Stderr.Write(m.Stderr)
		case *trellisv1.ExecResponse_ExitCode:
			return int(m.ExitCode), nil
		}
		if err != nil {
			return 0, fmt.Errorf("write the command's output: %w", err)
		}
	}
}

// ended gives the end of a stream before its last message a name.
func ended(err error) error {
	if errors.Is(err, io.EOF) {
		return errors.New("the agent has ended the session without an exit status; its log says why")
	}
	return err
}

// Wait implements [agentapi.Process].
func (p *process) Wait() (int, error) {
	<-p.done
	return p.code, p.err
}

// Resize implements [agentapi.Process].
func (p *process) Resize(rows, cols uint16) error {
	return p.send(&trellisv1.ExecRequest{Message: &trellisv1.ExecRequest_Resize{
		Resize: &trellisv1.WindowSize{Rows: uint32(rows), Columns: uint32(cols)},
	}})
}

// Signal implements [agentapi.Process]. A signal waits behind input that the process does
// not read. Where it cannot be sent for that, or one that nothing survives has no
// effect, the call ends: the agent then hangs up on the process, as it does on one
// whose client has gone away.
func (p *process) Signal(sig syscall.Signal) error {
	sent := make(chan error, 1)
	go func() {
		sent <- p.send(&trellisv1.ExecRequest{Message: &trellisv1.ExecRequest_Signal{Signal: int32(sig)}})
	}()
	select {
	case err := <-sent:
		if sig == syscall.SIGKILL {
			time.AfterFunc(silence, p.hangUp)
		}
		return err
	case <-p.done:
		return nil
	case <-time.After(silence):
		p.hangUp()
		return fmt.Errorf("on %s: the process does not read its input, behind which the signal waits; the session is cut off", p.c.host)
	}
}
