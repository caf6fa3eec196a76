package cli

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/creack/pty"
	"golang.org/x/term"

	trellisv1 "trellis/api/trellis/v1"
)

type execStream = connect.BidiStream[trellisv1.ExecRequest, trellisv1.ExecResponse]

func TestExecPipesInputAndReturnsTheStatus(t *testing.T) {
	f, env := startFake(t)
	f.session = echo
	input := strings.Repeat("some input\n", 20000) // many messages
	env.Stdin = strings.NewReader(input)
	env.want(3, strings.ToUpper(input), "exec", "-e", "X=1", "triangle/a", "--", "sh", "-c", "true")
	start := f.exec[0].GetStart()
	if got := strings.Join(start.GetArgv(), " "); got != "sh -c true" || start.GetTty() || start.GetVnet() != "triangle" || start.GetNode() != "a" || start.GetEnv()[0] != "X=1" {
		t.Errorf("started %v", start)
	}
}

// Flags after the node belong to the command, with and without the dashes.
func TestExecLeavesFlagsToTheCommand(t *testing.T) {
	f, env := startFake(t)
	f.session = echo
	env.want(3, "", "exec", "-n", "triangle/a", "ls", "-o", "--timeout", "--", "x")
	if got := strings.Join(f.exec[0].GetStart().GetArgv(), " "); got != "ls -o --timeout -- x" {
		t.Errorf("ran %q", got)
	}
}

func TestExecKeepsErrorsApart(t *testing.T) {
	f, env := startFake(t)
	f.session = func(f *fakeService, s *execStream) error {
		if _, err := f.receive(s); err != nil {
			return err
		}
		return errors.Join(
			s.Send(&trellisv1.ExecResponse{Message: &trellisv1.ExecResponse_Stdout{Stdout: []byte("out\n")}}),
			s.Send(&trellisv1.ExecResponse{Message: &trellisv1.ExecResponse_Stderr{Stderr: []byte("err\n")}}),
			s.Send(&trellisv1.ExecResponse{Message: &trellisv1.ExecResponse_ExitCode{ExitCode: 0}}))
	}
	env.want(0, "out\n", "exec", "triangle/a", "x")
	if env.err.String() != "err\n" {
		t.Errorf("standard error %q", env.err.String())
	}
	f.session = func(*fakeService, *execStream) error {
		return connect.NewError(connect.CodeNotFound, errors.New("triangle has no node z"))
	}
	env.wantError(1, "trellis: triangle has no node z\n", "exec", "triangle/z", "x")
	f.session = func(f *fakeService, s *execStream) error { _, err := f.receive(s); return err }
	env.wantError(1, "without an exit status", "exec", "triangle/a", "x")
}

func TestExecPassesSignalsOn(t *testing.T) {
	f, env := startFake(t)
	env.Stdin, _ = io.Pipe()
	f.session = func(f *fakeService, s *execStream) error {
		if _, err := f.receive(s); err != nil {
			return err
		}
		if err := syscall.Kill(os.Getpid(), syscall.SIGINT); err != nil {
			return err
		}
		for {
			m, err := f.receive(s)
			if err != nil {
				return err
			}
			if sig := m.GetSignal(); sig != 0 {
				return s.Send(&trellisv1.ExecResponse{Message: &trellisv1.ExecResponse_ExitCode{ExitCode: 128 + sig}})
			}
		}
	}
	within(t, 10*time.Second, func() { env.want(130, "", "exec", "triangle/a", "sleep", "9") })
}

func TestExecTimeout(t *testing.T) {
	f, env := startFake(t)
	f.session = func(f *fakeService, s *execStream) error {
		for {
			if _, err := f.receive(s); err != nil {
				return nil
			}
		}
	}
	env.Stdin, _ = io.Pipe()
	within(t, 10*time.Second, func() {
		env.wantError(1, "did not end within 50ms", "exec", "--timeout", "50ms", "triangle/a", "sleep", "9")
	})
}

// console runs `trellis console` on a terminal and returns the other end of it
// with the exit status to come.
func console(t *testing.T, env *testEnv) (*os.File, *os.File, <-chan int) {
	t.Helper()
	ptmx, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tty.Close(); ptmx.Close() })
	if err := pty.Setsize(ptmx, &pty.Winsize{Rows: 40, Cols: 100}); err != nil {
		t.Fatal(err)
	}
	env.Stdin, env.Stdout, env.Stderr = tty, tty, tty
	status := make(chan int, 1)
	go func() { status <- run(env.Env, []string{"--run-dir", env.RunDir, "console", "triangle/a"}) }()
	return ptmx, tty, status
}

// expect reads from the terminal until text appears.
func expect(t *testing.T, r *os.File, text string) string {
	t.Helper()
	var seen bytes.Buffer
	if err := r.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 4096)
	for !strings.Contains(seen.String(), text) {
		n, err := r.Read(buf)
		if err != nil {
			t.Fatalf("waiting for %q: %v; seen %q", text, err, seen.String())
		}
		seen.Write(buf[:n])
	}
	return seen.String()
}

func TestConsoleIsRawAndFollowsTheWindow(t *testing.T) {
	f, env := startFake(t)
	resized := make(chan *trellisv1.WindowSize, 4)
	f.session = func(f *fakeService, s *execStream) error {
		for {
			m, err := f.receive(s)
			if err != nil {
				return err
			}
			switch e := m.Message.(type) {
			case *trellisv1.ExecRequest_Start:
				err = s.Send(&trellisv1.ExecResponse{Message: &trellisv1.ExecResponse_Stdout{Stdout: []byte("a# ")}})
			case *trellisv1.ExecRequest_Resize:
				resized <- e.Resize
			case *trellisv1.ExecRequest_Stdin:
				if bytes.Contains(e.Stdin, []byte{4}) { // Ctrl-D arrives as a byte
					return s.Send(&trellisv1.ExecResponse{Message: &trellisv1.ExecResponse_ExitCode{ExitCode: 5}})
				}
				err = s.Send(&trellisv1.ExecResponse{Message: &trellisv1.ExecResponse_Stdout{Stdout: append([]byte("got "), e.Stdin...)}})
			}
			if err != nil {
				return err
			}
		}
	}
	ptmx, tty, status := console(t, env)
	before, err := term.GetState(int(tty.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	expect(t, ptmx, "a# ")
	// Ctrl-C goes to the shell and does not end the console; nothing echoes here.
	if _, err := ptmx.Write([]byte{3}); err != nil {
		t.Fatal(err)
	}
	if seen := expect(t, ptmx, "got \x03"); strings.Contains(seen, "^C") {
		t.Errorf("the terminal is not raw: %q", seen)
	}
	if err := pty.Setsize(ptmx, &pty.Winsize{Rows: 50, Cols: 132}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(os.Getpid(), syscall.SIGWINCH); err != nil {
		t.Fatal(err)
	}
	select {
	case size := <-resized:
		if size.GetRows() != 50 || size.GetColumns() != 132 {
			t.Errorf("resized to %v", size)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the change of size was not sent")
	}
	if _, err := ptmx.Write([]byte{4}); err != nil {
		t.Fatal(err)
	}
	within(t, 10*time.Second, func() {
		if got := <-status; got != 5 {
			t.Errorf("exit status %d, want 5", got)
		}
	})
	after, err := term.GetState(int(tty.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	if *after != *before {
		t.Error("the terminal was not given back as it was")
	}
	start := f.exec[0].GetStart()
	if !start.GetTty() || start.GetSize().GetRows() != 40 || start.GetSize().GetColumns() != 100 || len(start.GetArgv()) != 0 {
		t.Errorf("started %v", start)
	}
}

func TestConsoleEscape(t *testing.T) {
	f, env := startFake(t)
	f.session = func(f *fakeService, s *execStream) error {
		if err := s.Send(&trellisv1.ExecResponse{Message: &trellisv1.ExecResponse_Stdout{Stdout: []byte("a# ")}}); err != nil {
			return err
		}
		for {
			if _, err := f.receive(s); err != nil {
				return nil
			}
		}
	}
	ptmx, _, status := console(t, env)
	expect(t, ptmx, "a# ")
	if _, err := ptmx.Write([]byte("x\r~.")); err != nil {
		t.Fatal(err)
	}
	expect(t, ptmx, "detached")
	within(t, 10*time.Second, func() {
		if got := <-status; got != 1 {
			t.Errorf("exit status %d, want 1", got)
		}
	})
}

func TestEscapeFilter(t *testing.T) {
	for _, c := range []struct {
		in    []string
		out   string
		leave bool
	}{
		{[]string{"abc"}, "abc", false},
		{[]string{"~."}, "", true},
		{[]string{"~", "."}, "", true},
		{[]string{"a~."}, "a~.", false},
		{[]string{"a\r~."}, "a\r", true},
		{[]string{"~~."}, "~.", false},
		{[]string{"~x"}, "~x", false},
		{[]string{"~\r~."}, "~\r", true},
	} {
		var e escape
		var out []byte
		leave := false
		for _, in := range c.in {
			var part []byte
			part, leave = e.filter([]byte(in))
			out = append(out, part...)
		}
		if string(out) != c.out || leave != c.leave {
			t.Errorf("%q: sent %q, left %v; want %q, %v", c.in, out, leave, c.out, c.leave)
		}
	}
}

// pcapOf makes a pcap stream of frames of the sizes given.
func pcapOf(sizes ...int) []byte {
	out := make([]byte, pcapFileHeader)
	binary.LittleEndian.PutUint32(out, 0xa1b2c3d4)
	for _, n := range sizes {
		record := make([]byte, pcapRecordHeader+n)
		binary.LittleEndian.PutUint32(record[8:], uint32(n))
		binary.LittleEndian.PutUint32(record[12:], uint32(n))
		out = append(out, record...)
	}
	return out
}

func TestCapture(t *testing.T) {
	f, env := startFake(t)
	stream := pcapOf(60, 1514, 60)
	f.capture = func(_ context.Context, r *trellisv1.CaptureRequest, s *connect.ServerStream[trellisv1.CaptureResponse]) error {
		if r.GetNode() != "a" || r.GetInterface() != "eth1" || r.GetCount() != 3 || r.GetSnaplen() != 96 {
			t.Errorf("asked for %v", r)
		}
		for _, b := range stream { // in the smallest pieces
			if err := s.Send(&trellisv1.CaptureResponse{Pcap: []byte{b}}); err != nil {
				return err
			}
		}
		return nil
	}
	env.want(0, string(stream), "capture", "triangle/a:eth1", "-c", "3", "-s", "96")
	if got := env.err.String(); got != "3 frames captured\n" {
		t.Errorf("printed %q", got)
	}
	path := env.RunDir + "/x.pcap"
	env.want(0, "", "capture", "triangle/a:eth1", "-c", "3", "-s", "96", "-w", path)
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, stream) {
		t.Errorf("the file has %d bytes: %v", len(got), err)
	}
	f.capture = func(context.Context, *trellisv1.CaptureRequest, *connect.ServerStream[trellisv1.CaptureResponse]) error {
		return connect.NewError(connect.CodeNotFound, errors.New("no such interface"))
	}
	env.wantError(1, "no such interface", "capture", "triangle/a:eth9", "-w", path)
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, stream) {
		t.Error("a refused capture changed the file")
	}
}

// An interrupt ends a capture well, after the last whole frame.
func TestCaptureEndsAtAnInterrupt(t *testing.T) {
	f, env := startFake(t)
	stream := pcapOf(60, 60)
	f.capture = func(ctx context.Context, _ *trellisv1.CaptureRequest, s *connect.ServerStream[trellisv1.CaptureResponse]) error {
		if err := s.Send(&trellisv1.CaptureResponse{Pcap: append(bytes.Clone(stream), 1, 2, 3)}); err != nil {
			return err
		}
		if err := syscall.Kill(os.Getpid(), syscall.SIGINT); err != nil {
			return err
		}
		<-ctx.Done()
		return ctx.Err()
	}
	path := env.RunDir + "/x.pcap"
	within(t, 10*time.Second, func() { env.want(0, "", "capture", "triangle/a:eth1", "-w", path) })
	if got := env.err.String(); got != "2 frames captured in "+path+"\n" && got != "0 frames captured in "+path+"\n" && got != "0 frames captured\n" {
		t.Errorf("printed %q", got)
	}
	if got, err := os.ReadFile(path); err == nil && !bytes.Equal(got, stream) {
		t.Errorf("the file does not end in a whole frame: %d bytes", len(got))
	}
}

func TestBrokenCapture(t *testing.T) {
	var p pcapFrames
	if _, err := p.push(make([]byte, pcapFileHeader)); err == nil {
		t.Error("took a stream with a wrong magic number")
	}
	p = pcapFrames{}
	broken := pcapOf(10)
	binary.LittleEndian.PutUint32(broken[pcapFileHeader+8:], 1<<31)
	if _, err := p.push(broken); err == nil {
		t.Error("took a frame of 2 GiB")
	}
}

func TestInterruptsSayWhatIsLeft(t *testing.T) {
	f, env := startFake(t)
	file := env.file("t.yaml", triangle)
	interrupt := func(ctx context.Context) error {
		if err := syscall.Kill(os.Getpid(), syscall.SIGINT); err != nil {
			return err
		}
		<-ctx.Done()
		return ctx.Err()
	}
	f.apply = func(ctx context.Context, _ *trellisv1.ApplyRequest, s *connect.ServerStream[trellisv1.ApplyResponse]) error {
		if err := s.Send(progressOf("admitted", 0, 0, "")); err != nil {
			return err
		}
		time.Sleep(100 * time.Millisecond) // the client hears of it first
		return interrupt(ctx)
	}
	within(t, 10*time.Second, func() {
		env.wantError(1, "the service goes on building triangle: `trellis up "+file+"` waits for it again, `trellis down triangle` removes it", "up", file)
	})
	f.apply = func(ctx context.Context, _ *trellisv1.ApplyRequest, _ *connect.ServerStream[trellisv1.ApplyResponse]) error {
		return interrupt(ctx)
	}
	within(t, 10*time.Second, func() { env.wantError(1, "interrupted before the service admitted triangle", "up", file) })
	f.remove = func(ctx context.Context, _ *trellisv1.DeleteRequest, _ *connect.ServerStream[trellisv1.DeleteResponse]) error {
		return interrupt(ctx)
	}
	within(t, 10*time.Second, func() {
		env.wantError(1, "the removal may be unfinished: `trellis down triangle` finishes it", "down", "triangle")
	})
}
