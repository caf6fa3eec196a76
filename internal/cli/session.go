package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/term"

	trellisv1 "trellis/api/trellis/v1"
)

// session is one command that runs in a node with this process's streams.
type session struct {
	env   *Env
	start *trellisv1.ExecStart
	// input says whether standard input goes to the command.
	input bool
}

// conn is the client's end of an Exec call.
type conn interface {
	Send(*trellisv1.ExecRequest) error
	Receive() (*trellisv1.ExecResponse, error)
	CloseRequest() error
	CloseResponse() error
}

// run runs the command and returns its exit status as an exitStatus error, nil
// for 0.
func (s *session) run(ctx context.Context) error {
	var tty *os.File
	if s.start.Tty {
		if tty = terminal(s.env.Stdin); tty == nil {
			return usagef("standard input is no terminal; use `trellis exec` without -t, or run this in a terminal")
		}
		size, err := windowSize(tty)
		if err != nil {
			return err
		}
		s.start.Size, s.start.Term = size, envOr("TERM", "xterm")
	}
	client, err := s.env.client()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream := client.Exec(ctx)
	// Once the answer has begun, net/http watches the context only after the
	// request has ended; closing the request lets it look.
	defer context.AfterFunc(ctx, func() { _ = stream.CloseRequest() })()
	defer func() {
		cancel() // else closing would wait for the service to end the answer
		_ = stream.CloseResponse()
	}()
	if err := stream.Send(&trellisv1.ExecRequest{Message: &trellisv1.ExecRequest_Start{Start: s.start}}); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	sender := &sender{conn: stream}
	if tty != nil {
		old, err := term.MakeRaw(int(tty.Fd()))
		if err != nil {
			return fmt.Errorf("set the terminal to raw mode: %w", err)
		}
		defer func() {
			// The terminal is given back before any message is written to it.
			if e := term.Restore(int(tty.Fd()), old); e != nil {
				fmt.Fprintf(s.env.Stderr, "trellis: restore the terminal: %v; `reset` does\r\n", e)
			}
		}()
	}
	stop := s.relaySignals(sender, tty)
	defer stop()
	detached := make(chan struct{})
	if s.input {
		go s.relayInput(sender, tty != nil, func() { close(detached); cancel() })
	} else if err := sender.send(&trellisv1.ExecRequest{Message: &trellisv1.ExecRequest_StdinClosed{StdinClosed: true}}); err != nil {
		return err
	}
	err = s.relayOutput(stream)
	select {
	case <-detached:
		fmt.Fprint(s.env.Stderr, "\r\ndetached; the command was told to end\r\n")
		return exitStatus(exitFailed)
	default:
		return err
	}
}

// sender makes Send safe for several goroutines. After the command has ended
// the stream is closed; what is sent then is lost, as it is on a pipe.
type sender struct {
	mu   sync.Mutex
	conn conn
}

func (s *sender) send(m *trellisv1.ExecRequest) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.conn.Send(m); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// relayOutput writes what the command writes, until it exits.
func (s *session) relayOutput(stream conn) error {
	for {
		m, err := stream.Receive()
		if errors.Is(err, io.EOF) {
			return errors.New("the service ended the session without an exit status; its log says why")
		}
		if err != nil {
			return err
		}
		switch e := m.Message.(type) {
		case *trellisv1.ExecResponse_Stdout:
			_, err = s.env.Stdout.Write(e.Stdout)
		case *trellisv1.ExecResponse_Stderr:
			_, err = s.env.Stderr.Write(e.Stderr)
		case *trellisv1.ExecResponse_ExitCode:
			if e.ExitCode != 0 {
				return exitStatus(e.ExitCode)
			}
			return nil
		}
		if err != nil {
			return fmt.Errorf("write the command's output: %w", err)
		}
	}
}

// relayInput sends standard input to the command until it ends. On a terminal
// the escape sequence calls detach.
func (s *session) relayInput(to *sender, tty bool, detach func()) {
	buf := make([]byte, 32<<10)
	var esc escape
	for {
		n, err := s.env.Stdin.Read(buf)
		if n > 0 {
			data, leave := buf[:n:n], false
			if tty {
				data, leave = esc.filter(data)
			}
			if len(data) > 0 {
				if to.send(&trellisv1.ExecRequest{Message: &trellisv1.ExecRequest_Stdin{Stdin: append([]byte(nil), data...)}}) != nil {
					return // Receive reports why the stream is gone
				}
			}
			if leave {
				detach()
				return
			}
		}
		if err != nil {
			// A read error and the end of the input are one to the command.
			_ = to.send(&trellisv1.ExecRequest{Message: &trellisv1.ExecRequest_StdinClosed{StdinClosed: true}})
			return
		}
	}
}

// relaySignals passes signals, and changes of the window's size, on to the
// command. A terminal in raw mode sends its keys as bytes instead.
func (s *session) relaySignals(to *sender, tty *os.File) (stop func()) {
	ch := make(chan os.Signal, 8)
	signal.Notify(ch, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	if tty != nil {
		signal.Notify(ch, syscall.SIGWINCH)
	}
	done := make(chan struct{})
	go func() {
		for {
			select {
			case <-done:
				return
			case sig := <-ch:
				m := &trellisv1.ExecRequest{}
				if sig == syscall.SIGWINCH {
					size, err := windowSize(tty)
					if err != nil {
						continue // the terminal is going away, and the session with it
					}
					m.Message = &trellisv1.ExecRequest_Resize{Resize: size}
				} else {
					m.Message = &trellisv1.ExecRequest_Signal{Signal: int32(sig.(syscall.Signal))}
				}
				if to.send(m) != nil {
					return
				}
			}
		}
	}()
	return func() { signal.Stop(ch); close(done) }
}

func windowSize(tty *os.File) (*trellisv1.WindowSize, error) {
	columns, rows, err := term.GetSize(int(tty.Fd()))
	if err != nil {
		return nil, fmt.Errorf("read the terminal's size: %w", err)
	}
	return &trellisv1.WindowSize{Rows: uint32(rows), Columns: uint32(columns)}, nil
}

// escape finds the sequence that leaves a console: "~." at the start of a line,
// as in ssh(1). "~~" there sends one tilde.
type escape struct {
	inLine bool // something was typed since the line began
	tilde  bool // a tilde at the start of the line is held back
}

// filter returns the bytes to send, and whether to leave after them.
func (e *escape) filter(in []byte) (out []byte, leave bool) {
	out = make([]byte, 0, len(in)+1)
	for _, b := range in {
		if e.tilde {
			e.tilde = false
			switch b {
			case '.':
				return out, true
			case '~':
			default:
				out = append(out, '~')
			}
		} else if b == '~' && !e.inLine {
			e.tilde = true
			continue
		}
		out = append(out, b)
		e.inLine = b != '\r' && b != '\n'
	}
	return out, false
}
