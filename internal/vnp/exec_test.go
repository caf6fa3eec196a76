package vnp_test

import (
	"errors"
	"io"
	"strings"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"

	trellisv1 "trellis/api/trellis/v1"
)

func start(argv ...string) *trellisv1.ExecRequest {
	return &trellisv1.ExecRequest{Message: &trellisv1.ExecRequest_Start{Start: &trellisv1.ExecStart{
		Vnet: "x", Node: "a", Argv: argv, Size: &trellisv1.WindowSize{Rows: 5, Columns: 1 << 20}, Term: "vt100", Env: []string{"A=1"},
	}}}
}

func TestExecCarriesInputOutputAndCode(t *testing.T) {
	_, _, c := serve(t)
	mustApply(t, c, "x")
	stream := c.Exec(t.Context())
	for _, m := range []*trellisv1.ExecRequest{
		start("cat", "-u"),
		{Message: &trellisv1.ExecRequest_Stdin{Stdin: []byte("hello ")}},
		{Message: &trellisv1.ExecRequest_Resize{Resize: &trellisv1.WindowSize{Rows: 1, Columns: 1}}},
		{Message: &trellisv1.ExecRequest_Stdin{Stdin: []byte("world")}},
		{Message: &trellisv1.ExecRequest_StdinClosed{StdinClosed: true}},
	} {
		if err := stream.Send(m); err != nil {
			t.Fatal(err)
		}
	}
	var out, errs strings.Builder
	code := int32(-1)
	for {
		m, err := stream.Receive()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		out.Write(m.GetStdout())
		errs.Write(m.GetStderr())
		if e, ok := m.Message.(*trellisv1.ExecResponse_ExitCode); ok {
			code = e.ExitCode
		}
	}
	if out.String() != "hello world" || errs.String() != "cat -u 5x65535 A=1 TERM=vt100\n" || code != 3 {
		t.Errorf("stdout %q, stderr %q, code %d", out.String(), errs.String(), code)
	}
}

func TestExecEndsWithItsClient(t *testing.T) {
	sub, _, c := serve(t)
	mustApply(t, c, "x")
	stream := c.Exec(t.Context())
	if err := stream.Send(start("sleep")); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Receive(); err != nil { // it runs
		t.Fatal(err)
	}
	sub.hangUp()
	select {
	case sig := <-sub.signals:
		if sig != syscall.SIGHUP {
			t.Errorf("first signal %v", sig)
		}
	case <-time.After(5 * time.Second):
		t.Error("the process has outlived its client")
	}
}

func TestExecNeedsNodeAndStart(t *testing.T) {
	_, _, c := serve(t)
	mustApply(t, c, "x")
	stream := c.Exec(t.Context())
	if err := stream.Send(&trellisv1.ExecRequest{Message: &trellisv1.ExecRequest_Signal{Signal: 1}}); err != nil {
		t.Fatal(err)
	}
	_, err := stream.Receive()
	wantError(t, err, connect.CodeInvalidArgument, "start")
	stream = c.Exec(t.Context())
	m := start("true")
	m.GetStart().Node = "q"
	if err := stream.Send(m); err != nil {
		t.Fatal(err)
	}
	_, err = stream.Receive()
	wantError(t, err, connect.CodeNotFound, `"q"`)
}
