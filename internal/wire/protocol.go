package wire

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"connectrpc.com/connect"

	trellisv1 "trellis/api/trellis/v1"
	"trellis/api/trellis/v1/trellisv1connect"
)

// Protocol is what a client and a service must agree on: the requests, and what
// their fields mean. It grows with every change by which one of them would
// misread the other; a field that an older one may leave out is none. It is not the
// store's, which services agree on among themselves.
//
//	2  both say theirs in headers
//	1  nobody says
const Protocol = 2

// Headers of requests and responses. A request without them is served: it is
// of a tool, or of a client of protocol 1.
const (
	headerProtocol = "Trellis-Protocol"
	headerVersion  = "Trellis-Version"
)

// peer is one side of a call.
type peer struct {
	version  string // of the build; empty: it does not say
	protocol int
}

// peerOf reads the headers of the other side.
func peerOf(h http.Header) peer {
	p := peer{protocol: 1}
	if n, err := strconv.Atoi(h.Get(headerProtocol)); err == nil {
		p.protocol = n
	}
	// It goes into sentences: no more of it than a version has.
	p.version = strings.Map(func(r rune) rune {
		if r <= ' ' || r > '~' {
			return -1
		}
		return r
	}, h.Get(headerVersion))
	p.version = p.version[:min(len(p.version), 64)]
	return p
}

func (p peer) set(h http.Header) {
	h.Set(headerProtocol, strconv.Itoa(p.protocol))
	h.Set(headerVersion, p.version)
}

func (p peer) String() string {
	version := p.version
	if version == "" {
		version = "of an unknown version"
	}
	return fmt.Sprintf("%s (API protocol %d)", version, p.protocol)
}

// Versioned has a handler of the API say the service's protocol and version in each
// answer, and refuses requests of clients that say another protocol. Info is for
// all, so that each can find out.
func Versioned(next http.Handler, version string) http.Handler {
	service := peer{version, Protocol}
	refuse := connect.NewErrorWriter()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		service.set(w.Header())
		client := peerOf(r.Header)
		if r.Header.Get(headerProtocol) == "" || client.protocol == Protocol || r.URL.Path == trellisv1connect.VNetServiceInfoProcedure {
			next.ServeHTTP(w, r)
			return
		}
		err := connect.NewError(connect.CodeFailedPrecondition,
			fmt.Errorf("the client is trellis %v, the service is %v: use one build for both", client, service))
		if !refuse.IsSupported(r) {
			http.Error(w, err.Message(), http.StatusPreconditionFailed)
			return
		}
		_ = refuse.Write(w, r, err) // the client may be gone
	})
}

// versionCheck is a client's interceptor that asks the service, before the first call, for
// its protocol: one that does not know a field would leave it out, and make
// something else than what was described.
type versionCheck struct {
	client peer
	where  string                             // the service, for people
	info   trellisv1connect.VNetServiceClient // the same service, without the interceptor

	mu      sync.Mutex
	service *peer // nil: it has not said yet
}

// NewVNetServiceClient makes a client of the service at a URL. It says the version in
// each request, and fails where the service is of another protocol with a
// sentence that names both and what to do. Where is the service for people.
func NewVNetServiceClient(c connect.HTTPClient, url, where, version string) trellisv1connect.VNetServiceClient {
	return trellisv1connect.NewVNetServiceClient(c, url, connect.WithInterceptors(&versionCheck{
		client: peer{version, Protocol}, where: where, info: trellisv1connect.NewVNetServiceClient(c, url),
	}))
}

// check fails for a service of another protocol, or one that cannot be reached. One
// that answers and does not say is asked what it is asked for.
func (c *versionCheck) check(ctx context.Context, procedure string) error {
	if procedure == trellisv1connect.VNetServiceInfoProcedure {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.service == nil {
		req := connect.NewRequest(&trellisv1.InfoRequest{})
		c.client.set(req.Header())
		res, err := c.info.Info(ctx, req)
		switch {
		case err != nil && connect.IsWireError(err):
			return nil // the call itself will say why
		case err != nil:
			return err
		}
		service := peerOf(res.Header())
		if service.version == "" {
			service.version = res.Msg.Version
		}
		c.service = &service
	}
	if c.service.protocol != c.client.protocol {
		return c.mismatch("")
	}
	return nil
}

// mismatch says that the two are of different builds. The caller holds mu.
func (c *versionCheck) mismatch(what string) error {
	remedy := "restart the service with this build (networks run on), or use the build of the service"
	if c.service.protocol > c.client.protocol {
		remedy = "use the build of the service"
	}
	return connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("this trellis is %v, the service at %s is %v%s: %s",
		c.client, c.where, *c.service, what, remedy))
}

// explain turns the error about a request that the service does not know into the
// sentence.
func (c *versionCheck) explain(err error) error {
	if err == nil || connect.CodeOf(err) != connect.CodeUnimplemented {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.service == nil {
		return err
	}
	return c.mismatch(" and does not know this request")
}

// WrapUnary implements [connect.Interceptor].
func (c *versionCheck) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		if err := c.check(ctx, req.Spec().Procedure); err != nil {
			return nil, err
		}
		c.client.set(req.Header())
		res, err := next(ctx, req)
		return res, c.explain(err)
	}
}

// WrapStreamingClient implements [connect.Interceptor].
func (c *versionCheck) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		if err := c.check(ctx, spec.Procedure); err != nil {
			return &refusedStream{spec: spec, err: err, header: http.Header{}}
		}
		conn := next(ctx, spec)
		c.client.set(conn.RequestHeader())
		return &checkedStream{conn, c}
	}
}

// WrapStreamingHandler implements [connect.Interceptor].
func (*versionCheck) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

// checkedStream explains the errors of a stream.
type checkedStream struct {
	connect.StreamingClientConn
	check *versionCheck
}

// Receive implements [connect.StreamingClientConn].
func (s *checkedStream) Receive(m any) error {
	return s.check.explain(s.StreamingClientConn.Receive(m))
}

// refusedStream is a stream that was not begun.
type refusedStream struct {
	spec   connect.Spec
	err    error
	header http.Header
}

// The methods implement [connect.StreamingClientConn].
func (s *refusedStream) Spec() connect.Spec           { return s.spec }
func (s *refusedStream) Peer() connect.Peer           { return connect.Peer{} }
func (s *refusedStream) Send(any) error               { return s.err }
func (s *refusedStream) RequestHeader() http.Header   { return s.header }
func (s *refusedStream) CloseRequest() error          { return nil }
func (s *refusedStream) Receive(any) error            { return s.err }
func (s *refusedStream) ResponseHeader() http.Header  { return http.Header{} }
func (s *refusedStream) ResponseTrailer() http.Header { return http.Header{} }
func (s *refusedStream) CloseResponse() error         { return nil }
