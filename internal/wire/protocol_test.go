package wire

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"connectrpc.com/connect"

	trellisv1 "trellis/api/trellis/v1"
	"trellis/api/trellis/v1/trellisv1connect"
)

// service answers Info, List and Exec, and counts what it was asked beside Info.
type service struct {
	trellisv1connect.UnimplementedVNetServiceHandler
	asked int
}

func (*service) Info(context.Context, *connect.Request[trellisv1.InfoRequest]) (*connect.Response[trellisv1.InfoResponse], error) {
	return connect.NewResponse(&trellisv1.InfoResponse{Version: "v4"}), nil
}

func (s *service) List(context.Context, *connect.Request[trellisv1.ListRequest]) (*connect.Response[trellisv1.ListResponse], error) {
	s.asked++
	return connect.NewResponse(&trellisv1.ListResponse{}), nil
}

func (s *service) Apply(_ context.Context, _ *connect.Request[trellisv1.ApplyRequest], stream *connect.ServerStream[trellisv1.ApplyResponse]) error {
	s.asked++
	return stream.Send(&trellisv1.ApplyResponse{})
}

// start serves h, under a wrapping, over HTTP/2.
func start(t *testing.T, wrap func(http.Handler) http.Handler) (*service, *httptest.Server) {
	t.Helper()
	s := &service{}
	path, handler := trellisv1connect.NewVNetServiceHandler(s)
	mux := http.NewServeMux()
	mux.Handle(path, wrap(handler))
	server := httptest.NewUnstartedServer(mux)
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	return s, server
}

// versioned is a service that says a protocol; 0: none.
func versioned(protocol int) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		if protocol == Protocol {
			return Versioned(next, "v4")
		}
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if protocol > 0 {
				peer{"v4", protocol}.set(w.Header())
			}
			next.ServeHTTP(w, r)
		})
	}
}

// calls are one of each kind.
func calls(t *testing.T, c trellisv1connect.VNetServiceClient) map[string]error {
	errs := map[string]error{}
	_, errs["List"] = c.List(t.Context(), connect.NewRequest(&trellisv1.ListRequest{}))
	apply, err := c.Apply(t.Context(), connect.NewRequest(&trellisv1.ApplyRequest{}))
	if err == nil {
		apply.Receive()
		err = apply.Err()
	}
	errs["Apply"] = err
	exec := c.Exec(t.Context())
	_ = exec.Send(&trellisv1.ExecRequest{}) // Receive says why
	_, errs["Exec"] = exec.Receive()
	return errs
}

func TestServicesOfAnotherProtocolAreNamed(t *testing.T) {
	for _, c := range []struct {
		protocol int
		want     string // the sentence of every call; empty: only of Exec, which this service does not have
	}{
		{0, fmt.Sprintf("this trellis is v5 (API protocol %d), the service at here is v4 (API protocol 1): restart the service with this build (networks run on), or use the build of the service", Protocol)},
		{Protocol + 1, fmt.Sprintf("this trellis is v5 (API protocol %d), the service at here is v4 (API protocol %d): use the build of the service", Protocol, Protocol+1)},
		{Protocol, ""},
	} {
		s, server := start(t, versioned(c.protocol))
		client := NewVNetServiceClient(server.Client(), server.URL, "here", "v5")
		for call, err := range calls(t, client) {
			want := c.want
			if want == "" && call == "Exec" {
				want = fmt.Sprintf("this trellis is v5 (API protocol %d), the service at here is v4 (API protocol %d) and does not know this request: restart", Protocol, Protocol)
			}
			switch {
			case want == "" && err != nil:
				t.Errorf("protocol %d: %s: %v", c.protocol, call, err)
			case want != "" && (err == nil || connect.CodeOf(err) != connect.CodeFailedPrecondition || !strings.Contains(err.Error(), want)):
				t.Errorf("protocol %d: %s: %v, want %q", c.protocol, call, err, want)
			}
		}
		if served := c.want == ""; served != (s.asked > 0) {
			t.Errorf("protocol %d: the service was asked %d times", c.protocol, s.asked)
		}
		if _, err := client.Info(t.Context(), connect.NewRequest(&trellisv1.InfoRequest{})); err != nil {
			t.Errorf("protocol %d: Info: %v", c.protocol, err)
		}
	}
}

func TestClientsOfAnotherProtocolAreRefused(t *testing.T) {
	s, server := start(t, versioned(Protocol))
	c := trellisv1connect.NewVNetServiceClient(server.Client(), server.URL)
	for _, says := range []string{"", fmt.Sprint(Protocol), "7", "x"} {
		s.asked = 0
		req := connect.NewRequest(&trellisv1.ListRequest{})
		if says != "" {
			req.Header().Set(headerProtocol, says)
			req.Header().Set(headerVersion, "v9\tbeta")
		}
		res, err := c.List(t.Context(), req)
		if says == "" || says == fmt.Sprint(Protocol) {
			if err != nil || s.asked != 1 || res.Header().Get(headerProtocol) != fmt.Sprint(Protocol) || res.Header().Get(headerVersion) != "v4" {
				t.Errorf("%q: %v, %v", says, res, err)
			}
			continue
		}
		if err == nil || s.asked > 0 || !strings.Contains(err.Error(), "the client is trellis v9beta (API protocol ") || !strings.Contains(err.Error(), "the service is v4 (API protocol") {
			t.Errorf("%q: %v", says, err)
		}
		info := connect.NewRequest(&trellisv1.InfoRequest{})
		info.Header().Set(headerProtocol, says)
		if _, err := c.Info(t.Context(), info); err != nil {
			t.Errorf("%q: Info: %v", says, err)
		}
	}
}
