package fleet

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	trellisv1 "trellis/api/trellis/v1"
	"trellis/api/trellis/v1/trellisv1connect"
	"trellis/internal/agentapi"
	"trellis/internal/plan"
	"trellis/internal/store"
)

// callerRole is the role that a peer's certificate must list, if it lists any.
const callerRole = "vnp"

// ServerConfig says what a Server offers, and to whom. All fields but Base and
// Log are required.
type ServerConfig struct {
	Agent agentapi.Agent // the agent of this machine
	// TLS holds this machine's certificate, and the authority of the peers as
	// RootCAs: the same as of a [Config].
	TLS *tls.Config
	// Base is the parent of all requests' contexts; nil: the background.
	Base context.Context
	Log  *slog.Logger // nil: [slog.Default]
}

// Server offers this machine's agent to the other substrate nodes.
type Server struct {
	http *http.Server
	tls  *tls.Config
}

// NewServer makes a server. It fails without a certificate and an authority.
func NewServer(c ServerConfig) (*Server, error) {
	if c.TLS == nil || c.TLS.RootCAs == nil || len(c.TLS.Certificates) == 0 && c.TLS.GetCertificate == nil {
		return nil, fmt.Errorf("offer the agent to other machines: %w", errNoCertificate)
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Base == nil {
		c.Base = context.Background()
	}
	config := c.TLS.Clone()
	config.MinVersion = tls.VersionTLS13
	config.ClientAuth = tls.RequireAndVerifyClientCert
	config.ClientCAs = c.TLS.RootCAs
	config.NextProtos = []string{"h2"}
	mux := http.NewServeMux()
	path, handler := trellisv1connect.NewAgentServiceHandler(&service{agent: c.Agent, log: c.Log}, connect.WithReadMaxBytes(maxMessage))
	mux.Handle(path, admitted(handler, c.Log))
	protocols := new(http.Protocols)
	protocols.SetHTTP2(true)
	return &Server{tls: config, http: &http.Server{
		Handler:           mux,
		Protocols:         protocols,
		HTTP2:             &http.HTTP2Config{SendPingTimeout: silence, PingTimeout: silence},
		TLSConfig:         config,
		ReadHeaderTimeout: 10 * time.Second,
		BaseContext:       func(net.Listener) context.Context { return c.Base },
		ErrorLog:          slog.NewLogLogger(c.Log.Handler(), slog.LevelDebug), // strangers' handshakes, for the most part
	}}, nil
}

// Serve answers requests on a TCP listener until Shutdown; nil then.
func (s *Server) Serve(l net.Listener) error {
	if err := s.http.ServeTLS(l, "", ""); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("offer the agent to other machines: %w", err)
	}
	return nil
}

// Shutdown takes no more requests, and returns when those there are have ended,
// or are cut off with ctx.
func (s *Server) Shutdown(ctx context.Context) error {
	err := s.http.Shutdown(ctx)
	if ctx.Err() != nil {
		err = s.http.Close()
	}
	if err != nil {
		return fmt.Errorf("end the agent's API: %w", err)
	}
	return nil
}

// admitted passes on the requests of peers that may make them.
func admitted(next http.Handler, log *slog.Logger) http.Handler {
	refuse := connect.NewErrorWriter()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// TLS has verified the certificate; without one, no request gets here.
		peer := r.TLS.PeerCertificates[0]
		if err := mayCall(peer); err != nil {
			log.Warn("refused a peer", "peer", peerName(peer), "request", r.URL.Path, "error", err)
			// It fails only where the peer is gone.
			_ = refuse.Write(w, r, connect.NewError(connect.CodePermissionDenied, err))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// mayCall refuses a certificate that lists roles, but not the one that calls
// agents.
func mayCall(peer *x509.Certificate) error {
	roles := peer.Subject.OrganizationalUnit
	if len(roles) == 0 || slices.Contains(roles, callerRole) {
		return nil
	}
	return fmt.Errorf("the certificate of %s is for the roles %s; only %s may ask agents",
		peerName(peer), strings.Join(roles, ", "), callerRole)
}

func peerName(peer *x509.Certificate) string {
	if len(peer.DNSNames) > 0 {
		return peer.DNSNames[0]
	}
	return peer.Subject.CommonName
}

// service is AgentService over the agent of this machine.
type service struct {
	agent     agentapi.Agent
	log       *slog.Logger
	preparing sync.Map // VNet → how far its Prepare is
}

var _ trellisv1connect.AgentServiceHandler = (*service)(nil)

// fail gives an error its code.
func fail(err error) error {
	var known *connect.Error
	switch {
	case err == nil || errors.As(err, &known):
		return err
	case errors.Is(err, store.ErrNotFound):
		return connect.NewError(connect.CodeNotFound, err)
	case errors.Is(err, context.Canceled):
		return connect.NewError(connect.CodeCanceled, err)
	case errors.Is(err, context.DeadlineExceeded):
		return connect.NewError(connect.CodeDeadlineExceeded, err)
	}
	return connect.NewError(connect.CodeUnknown, err)
}

func invalid(format string, args ...any) error {
	return connect.NewError(connect.CodeInvalidArgument, fmt.Errorf(format, args...))
}

func readPlan(b []byte) (*plan.Plan, error) {
	p := &plan.Plan{}
	if err := json.Unmarshal(b, p); err != nil {
		return nil, invalid("read the plan: %w", err)
	}
	return p, nil
}

// Prepare serves AgentService.
func (s *service) Prepare(ctx context.Context, req *connect.Request[trellisv1.PrepareRequest]) (*connect.Response[trellisv1.PrepareResponse], error) {
	p, err := readPlan(req.Msg.Plan)
	if err != nil {
		return nil, err
	}
	defer s.preparing.Delete(p.VNet)
	ctx = agentapi.WithProgress(ctx, func(doing string) { s.preparing.Store(p.VNet, doing) })
	if err := s.agent.Prepare(ctx, p); err != nil {
		return nil, fail(err)
	}
	return connect.NewResponse(&trellisv1.PrepareResponse{}), nil
}

// Preparing serves AgentService.
func (s *service) Preparing(_ context.Context, req *connect.Request[trellisv1.PreparingRequest]) (*connect.Response[trellisv1.PreparingResponse], error) {
	out := &trellisv1.PreparingResponse{}
	if doing, ok := s.preparing.Load(req.Msg.Vnet); ok {
		out.Doing = doing.(string)
	}
	return connect.NewResponse(out), nil
}

// DryRun serves AgentService.
func (s *service) DryRun(ctx context.Context, req *connect.Request[trellisv1.DryRunRequest]) (*connect.Response[trellisv1.DryRunResponse], error) {
	p, err := readPlan(req.Msg.Plan)
	if err != nil {
		return nil, err
	}
	steps, err := s.agent.DryRun(ctx, p)
	if err != nil {
		return nil, fail(err)
	}
	out := &trellisv1.DryRunResponse{}
	for _, st := range steps {
		out.Steps = append(out.Steps, &trellisv1.Step{Op: st.Op, Object: st.Object, Detail: st.Detail})
	}
	return connect.NewResponse(out), nil
}

// Exec serves AgentService.
func (s *service) Exec(ctx context.Context, stream *agentapi.ExecStream) error {
	start, err := agentapi.ReceiveExec(stream)
	if err != nil {
		return err
	}
	return fail(agentapi.ServeExec(ctx, s.agent, start, stream, s.log))
}

// Capture serves AgentService.
func (s *service) Capture(ctx context.Context, req *connect.Request[trellisv1.CaptureRequest], stream *connect.ServerStream[trellisv1.CaptureResponse]) error {
	m := req.Msg
	return fail(s.agent.Capture(ctx, m.Vnet, m.Node, m.Interface, m.Snaplen, m.Count, agentapi.CaptureWriter{Stream: stream}))
}

// Logs serves AgentService.
func (s *service) Logs(ctx context.Context, req *connect.Request[trellisv1.LogsRequest], stream *connect.ServerStream[trellisv1.LogsResponse]) error {
	return fail(s.agent.Logs(ctx, req.Msg.Vnet, req.Msg.Node, agentapi.LogQueryOf(req.Msg), agentapi.LogSender(stream)))
}

// Restart serves AgentService.
func (s *service) Restart(ctx context.Context, req *connect.Request[trellisv1.RestartRequest]) (*connect.Response[trellisv1.RestartResponse], error) {
	if err := s.agent.Restart(ctx, req.Msg.Vnet, req.Msg.Node, req.Msg.Service); err != nil {
		return nil, fail(err)
	}
	return connect.NewResponse(&trellisv1.RestartResponse{}), nil
}

// StopService serves AgentService.
func (s *service) StopService(ctx context.Context, req *connect.Request[trellisv1.StopServiceRequest]) (*connect.Response[trellisv1.StopServiceResponse], error) {
	if err := s.agent.StopService(ctx, req.Msg.Vnet, req.Msg.Node, req.Msg.Service); err != nil {
		return nil, fail(err)
	}
	return connect.NewResponse(&trellisv1.StopServiceResponse{}), nil
}

// StartService serves AgentService.
func (s *service) StartService(ctx context.Context, req *connect.Request[trellisv1.StartServiceRequest]) (*connect.Response[trellisv1.StartServiceResponse], error) {
	if err := s.agent.StartService(ctx, req.Msg.Vnet, req.Msg.Node, req.Msg.Service); err != nil {
		return nil, fail(err)
	}
	return connect.NewResponse(&trellisv1.StartServiceResponse{}), nil
}

// SendEchoes serves AgentService.
func (s *service) SendEchoes(ctx context.Context, req *connect.Request[trellisv1.SendEchoesRequest], stream *connect.ServerStream[trellisv1.SendEchoesResponse]) error {
	r, err := echoesFromProto(req.Msg)
	if err != nil {
		return invalid("%w", err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var mu sync.Mutex // progress may come from any goroutine, and late
	result, err := s.agent.Ping(ctx, r, func(done, total int) {
		mu.Lock()
		defer mu.Unlock()
		if err := stream.Send(&trellisv1.SendEchoesResponse{Event: &trellisv1.SendEchoesResponse_Progress{
			Progress: &trellisv1.EchoProgress{Done: int32(done), Total: int32(total)},
		}}); err != nil {
			cancel(err)
		}
	})
	if err != nil {
		return fail(err)
	}
	mu.Lock()
	defer mu.Unlock()
	return stream.Send(&trellisv1.SendEchoesResponse{Event: &trellisv1.SendEchoesResponse_Result{Result: echoResultToProto(result)}})
}

// Addresses serves AgentService.
func (s *service) Addresses(ctx context.Context, req *connect.Request[trellisv1.AddressesRequest]) (*connect.Response[trellisv1.AddressesResponse], error) {
	found, err := s.agent.Addresses(ctx, req.Msg.Vnet, req.Msg.Nodes)
	if err != nil {
		return nil, fail(err)
	}
	out := &trellisv1.AddressesResponse{}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		e := &trellisv1.Endpoint{Name: name}
		for _, a := range found[name] {
			e.Addresses = append(e.Addresses, a.String())
		}
		out.Nodes = append(out.Nodes, e)
	}
	return connect.NewResponse(out), nil
}

// NodeStats serves AgentService.
func (s *service) NodeStats(ctx context.Context, req *connect.Request[trellisv1.NodeStatsRequest]) (*connect.Response[trellisv1.NodeStatsResponse], error) {
	stats, err := s.agent.NodeStats(ctx, req.Msg.Vnet)
	if err != nil {
		return nil, fail(err)
	}
	out := &trellisv1.NodeStatsResponse{}
	for name, n := range stats {
		out.Nodes = append(out.Nodes, nodeStatsToProto(name, n))
	}
	return connect.NewResponse(out), nil
}

// PortStats serves AgentService.
func (s *service) PortStats(ctx context.Context, req *connect.Request[trellisv1.PortStatsRequest]) (*connect.Response[trellisv1.PortStatsResponse], error) {
	stats, err := s.agent.PortStats(ctx, req.Msg.Vnet)
	if err != nil {
		return nil, fail(err)
	}
	out := &trellisv1.PortStatsResponse{}
	for object, p := range stats {
		node, iface, _ := strings.Cut(object, ":")
		out.Ports = append(out.Ports, portStatsToProto(node, iface, p))
	}
	return connect.NewResponse(out), nil
}

// UplinkStats serves AgentService.
func (s *service) UplinkStats(ctx context.Context, _ *connect.Request[trellisv1.UplinkStatsRequest]) (*connect.Response[trellisv1.UplinkStatsResponse], error) {
	stats, err := s.agent.UplinkStats(ctx)
	if err != nil {
		return nil, fail(err)
	}
	out := &trellisv1.UplinkStatsResponse{}
	for _, u := range stats {
		out.Uplinks = append(out.Uplinks, &trellisv1.UplinkStatus{
			Interface: u.Interface, Xdp: u.XDP, Drops: u.Drops, Message: u.Message, Mtu: int32(u.MTU),
		})
	}
	return connect.NewResponse(out), nil
}

// SweepAll serves AgentService.
func (s *service) SweepAll(ctx context.Context, _ *connect.Request[trellisv1.SweepAllRequest]) (*connect.Response[trellisv1.SweepAllResponse], error) {
	if err := s.agent.SweepAll(ctx); err != nil {
		return nil, fail(err)
	}
	return connect.NewResponse(&trellisv1.SweepAllResponse{}), nil
}
