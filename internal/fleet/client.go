package fleet

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"connectrpc.com/connect"

	trellisv1 "trellis/api/trellis/v1"
	"trellis/api/trellis/v1/trellisv1connect"
	"trellis/internal/agentapi"
	"trellis/internal/plan"
	"trellis/internal/store"
)

const (
	// maxMessage bounds a message, in bytes: a plan, or the pairs of a ping.
	maxMessage = 64 << 20
	// dialTime bounds the making of a connection, and again its TLS handshake.
	dialTime = 3 * time.Second
	// silence is how long a connection may carry nothing before it is tried, and
	// then how long it may go without an answer before it counts as dead.
	silence = 2 * time.Second
)

// client asks the agent of another substrate node.
type client struct {
	host, api string
	config    *tls.Config // as it was given
	transport *http.Transport
	rpc       trellisv1connect.AgentServiceClient
}

var _ agentapi.Agent = (*client)(nil)

// dial makes a client; it connects when it is used.
func dial(host, api string, given *tls.Config) *client {
	config := given.Clone()
	config.ServerName = host
	config.MinVersion = tls.VersionTLS13
	protocols := new(http.Protocols)
	protocols.SetHTTP2(true)
	transport := &http.Transport{
		DialContext:         (&net.Dialer{Timeout: dialTime}).DialContext,
		TLSClientConfig:     config,
		TLSHandshakeTimeout: dialTime,
		IdleConnTimeout:     time.Minute,
		Protocols:           protocols,
		HTTP2:               &http.HTTP2Config{SendPingTimeout: silence, PingTimeout: silence},
	}
	return &client{
		host: host, api: api, config: given, transport: transport,
		rpc: trellisv1connect.NewAgentServiceClient(&http.Client{Transport: transport}, "https://"+api,
			connect.WithReadMaxBytes(maxMessage),
			connect.WithAcceptCompression("gzip", nil, nil), // statistics and captures are not worth the time
		),
	}
}

func (c *client) close() { c.transport.CloseIdleConnections() }

// apart makes a client with connections of its own, which cut ends, whatever they
// are at. All that goes over one connection shares its flow control, so input that
// a process does not read would keep every other call from getting through.
func (c *client) apart() (own *client, cut func()) {
	own = dial(c.host, c.api, c.config)
	connect := own.transport.DialContext
	var mu sync.Mutex
	var conns []net.Conn
	over := false
	own.transport.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := connect(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		mu.Lock()
		defer mu.Unlock()
		if over {
			conn.Close()
			return nil, net.ErrClosed
		}
		conns = append(conns, conn)
		return conn, nil
	}
	return own, func() {
		mu.Lock()
		defer mu.Unlock()
		over = true
		for _, conn := range conns {
			conn.Close() // a second time, it fails
		}
		own.close()
	}
}

// explain turns the error of a call into a sentence that names the substrate
// node. The context is the call's.
func (c *client) explain(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return context.Cause(ctx)
	}
	var known *connect.Error
	if !errors.As(err, &known) {
		return fmt.Errorf("on %s: %w", c.host, err)
	}
	text := "on " + c.host + ": " + known.Message()
	switch {
	case ctx.Err() != nil || known.Code() == connect.CodeDeadlineExceeded:
		return c.unreachable(fmt.Sprintf("substrate node %s has not answered in time", c.host), known)
	case !connect.IsWireError(err):
		return c.unreachable(fmt.Sprintf("substrate node %s does not answer at %s (%s)", c.host, c.api, known.Message()), known)
	case known.Code() == connect.CodeCanceled:
		// Nobody has canceled it here.
		return c.unreachable(fmt.Sprintf("trellis serve on substrate node %s has ended during the request", c.host), known)
	case known.Code() == connect.CodeUnavailable:
		return c.unreachable(text, known)
	case known.Code() == connect.CodeNotFound:
		return store.NotFound("%s", text)
	case known.Code() == connect.CodeUnimplemented:
		return fmt.Errorf("substrate node %s runs another version of Trellis, which does not know this request; give all the same", c.host)
	}
	return errors.New(text)
}

// unreachable makes the error of a substrate node that does not answer. The cause goes
// without its connect code, which a handler would send to the client in place of
// the sentence.
func (c *client) unreachable(why string, err *connect.Error) error {
	return &agentapi.Unreachable{Host: c.host, Why: why + remedy, Err: err.Unwrap()}
}

// Prepare implements [agentapi.Agent].
func (c *client) Prepare(ctx context.Context, p *plan.Plan) error {
	b, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("encode the plan of %s: %w", p.VNet, err)
	}
	if tell := agentapi.ProgressOf(ctx); tell != nil {
		follow, stop := context.WithCancel(ctx)
		defer stop()
		go c.followPreparing(follow, p.VNet, tell)
	}
	_, err = c.rpc.Prepare(ctx, connect.NewRequest(&trellisv1.PrepareRequest{Plan: b}))
	return c.explain(ctx, err)
}

// preparingEvery is how often a machine is asked how far it is with a plan.
const preparingEvery = time.Second

// followPreparing tells how far the machine is with a plan until ctx ends. One that
// cannot say so, as those of earlier builds, is not asked again.
func (c *client) followPreparing(ctx context.Context, vnet string, tell func(string)) {
	tick := time.NewTicker(preparingEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		r, err := c.rpc.Preparing(ctx, connect.NewRequest(&trellisv1.PreparingRequest{Vnet: vnet}))
		if err != nil || ctx.Err() != nil {
			return
		}
		if r.Msg.Doing != "" {
			tell("on " + c.host + ": " + r.Msg.Doing)
		}
	}
}

// DryRun implements [agentapi.Agent].
func (c *client) DryRun(ctx context.Context, p *plan.Plan) ([]agentapi.Step, error) {
	b, err := json.Marshal(p)
	if err != nil {
		return nil, fmt.Errorf("encode the plan of %s: %w", p.VNet, err)
	}
	r, err := c.rpc.DryRun(ctx, connect.NewRequest(&trellisv1.DryRunRequest{Plan: b}))
	if err != nil {
		return nil, c.explain(ctx, err)
	}
	var steps []agentapi.Step
	for _, s := range r.Msg.Steps {
		steps = append(steps, agentapi.Step{Op: s.Op, Object: s.Object, Detail: s.Detail})
	}
	return steps, nil
}

// Capture implements [agentapi.Agent].
func (c *client) Capture(ctx context.Context, vnet, node, iface string, snaplen uint32, count uint64, w io.Writer) error {
	// Leaving early, for a writer that fails, must end the call.
	call, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.rpc.Capture(call, connect.NewRequest(&trellisv1.CaptureRequest{
		Vnet: vnet, Node: node, Interface: iface, Snaplen: snaplen, Count: count,
	}))
	if err != nil {
		return c.explain(ctx, err)
	}
	defer stream.Close()
	defer cancel()
	for stream.Receive() {
		if _, err := w.Write(stream.Msg().Pcap); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	return c.explain(ctx, stream.Err())
}

// Logs implements [agentapi.Agent].
func (c *client) Logs(ctx context.Context, vnet, node string, q agentapi.LogQuery, each func(service string, text []byte) error) error {
	// Leaving early, for a reader that fails, must end the call.
	call, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.rpc.Logs(call, connect.NewRequest(&trellisv1.LogsRequest{
		Vnet: vnet, Node: node, Service: q.Service, Tail: int32(q.Tail), Follow: q.Follow,
	}))
	if err != nil {
		return c.explain(ctx, err)
	}
	defer stream.Close()
	defer cancel()
	for stream.Receive() {
		if err := each(stream.Msg().Service, stream.Msg().Text); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	return c.explain(ctx, stream.Err())
}

// Restart implements [agentapi.Agent].
func (c *client) Restart(ctx context.Context, vnet, node, service string) error {
	_, err := c.rpc.Restart(ctx, connect.NewRequest(&trellisv1.RestartRequest{Vnet: vnet, Node: node, Service: service}))
	return c.explain(ctx, err)
}

// StopService implements [agentapi.Agent].
func (c *client) StopService(ctx context.Context, vnet, node, service string) error {
	_, err := c.rpc.StopService(ctx, connect.NewRequest(&trellisv1.StopServiceRequest{Vnet: vnet, Node: node, Service: service}))
	return c.explain(ctx, err)
}

// StartService implements [agentapi.Agent].
func (c *client) StartService(ctx context.Context, vnet, node, service string) error {
	_, err := c.rpc.StartService(ctx, connect.NewRequest(&trellisv1.StartServiceRequest{Vnet: vnet, Node: node, Service: service}))
	return c.explain(ctx, err)
}

// Ping implements [agentapi.Agent].
func (c *client) Ping(ctx context.Context, r agentapi.PingRequest, progress func(done, total int)) (*agentapi.PingResult, error) {
	call, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.rpc.SendEchoes(call, connect.NewRequest(echoesToProto(r)))
	if err != nil {
		return nil, c.explain(ctx, err)
	}
	defer stream.Close()
	defer cancel()
	for stream.Receive() {
		switch e := stream.Msg().Event.(type) {
		case *trellisv1.SendEchoesResponse_Progress:
			progress(int(e.Progress.Done), int(e.Progress.Total))
		case *trellisv1.SendEchoesResponse_Result:
			out, err := echoResult(e.Result, len(r.Pairs))
			if err != nil {
				return nil, fmt.Errorf("on %s: %w", c.host, err)
			}
			return out, nil
		}
	}
	if err := stream.Err(); err != nil {
		return nil, c.explain(ctx, err)
	}
	return nil, fmt.Errorf("on %s: the agent has ended its answer without a result; its log says why", c.host)
}

// Addresses implements [agentapi.Agent].
func (c *client) Addresses(ctx context.Context, vnet string, nodes []string) (map[string][]netip.Addr, error) {
	r, err := c.rpc.Addresses(ctx, connect.NewRequest(&trellisv1.AddressesRequest{Vnet: vnet, Nodes: nodes}))
	if err != nil {
		return nil, c.explain(ctx, err)
	}
	out := make(map[string][]netip.Addr, len(r.Msg.Nodes))
	for _, e := range r.Msg.Nodes {
		for _, text := range e.Addresses {
			a, err := netip.ParseAddr(text)
			if err != nil {
				return nil, fmt.Errorf("on %s: address of %s: %w", c.host, e.Name, err)
			}
			out[e.Name] = append(out[e.Name], a)
		}
	}
	return out, nil
}

// NodeStats implements [agentapi.Agent].
func (c *client) NodeStats(ctx context.Context, vnet string) (map[string]agentapi.NodeStats, error) {
	r, err := c.rpc.NodeStats(ctx, connect.NewRequest(&trellisv1.NodeStatsRequest{Vnet: vnet}))
	if err != nil {
		return nil, c.explain(ctx, err)
	}
	out := make(map[string]agentapi.NodeStats, len(r.Msg.Nodes))
	for _, n := range r.Msg.Nodes {
		out[n.Name] = nodeStats(n)
	}
	return out, nil
}

// PortStats implements [agentapi.Agent].
func (c *client) PortStats(ctx context.Context, vnet string) (map[string]agentapi.PortStats, error) {
	r, err := c.rpc.PortStats(ctx, connect.NewRequest(&trellisv1.PortStatsRequest{Vnet: vnet}))
	if err != nil {
		return nil, c.explain(ctx, err)
	}
	out := make(map[string]agentapi.PortStats, len(r.Msg.Ports))
	for _, p := range r.Msg.Ports {
		object := p.Node
		if p.Interface != "" {
			object += ":" + p.Interface
		}
		if out[object], err = portStats(p); err != nil {
			return nil, fmt.Errorf("on %s: %w", c.host, err)
		}
	}
	return out, nil
}

// UplinkStats implements [agentapi.Agent].
func (c *client) UplinkStats(ctx context.Context) ([]agentapi.UplinkStats, error) {
	r, err := c.rpc.UplinkStats(ctx, connect.NewRequest(&trellisv1.UplinkStatsRequest{}))
	if err != nil {
		return nil, c.explain(ctx, err)
	}
	var out []agentapi.UplinkStats
	for _, u := range r.Msg.Uplinks {
		out = append(out, agentapi.UplinkStats{
			Interface: u.Interface, XDP: u.Xdp, MTU: int(u.Mtu), Drops: u.Drops, Message: u.Message,
		})
	}
	return out, nil
}

// SweepAll implements [agentapi.Agent].
func (c *client) SweepAll(ctx context.Context) error {
	_, err := c.rpc.SweepAll(ctx, connect.NewRequest(&trellisv1.SweepAllRequest{}))
	return c.explain(ctx, err)
}
