package serve

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"syscall"
	"time"

	"connectrpc.com/connect"

	"trellis/api/trellis/v1/trellisv1connect"
	"trellis/internal/metrics"
	"trellis/internal/vnp"
	"trellis/internal/wire"
)

const (
	// maxMessage bounds a request, in bytes: the description of a VNet with its
	// users' files.
	maxMessage = 64 << 20
	// drain is how long requests have to end when the service does.
	drain = 3 * time.Second
	// CopyPath answers with a copy of the store (see store.ReadCopy).
	CopyPath = "/store/copy"
	// HealthPath answers 200 while the service serves.
	HealthPath = "/healthz"
)

// apiServer serves on a listener of its own: the API on the unix socket (Connect,
// gRPC over HTTP/2 without TLS, and JSON), or the metrics for Prometheus.
type apiServer struct {
	listener net.Listener
	http     *http.Server
}

// listen makes the socket, in the place of one that a killed service has left.
// The caller has the instance's lock. The requests' contexts are children of
// base. Without an API, requests are answered with where to go.
func listen(base context.Context, path string, api *vnp.Service, metricsHandler, storeCopy http.Handler, log *slog.Logger) (*apiServer, error) {
	if most := len(syscall.RawSockaddrUnix{}.Path) - 1; len(path) > most {
		return nil, fmt.Errorf("the socket's path %s has %d bytes, and a socket's may have %d; name a shorter run directory", path, len(path), most)
	}
	if err := removeSocket(path); err != nil {
		return nil, err
	}
	// The mode of a socket file is that of the socket before it is bound.
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		if cerr := c.Control(func(fd uintptr) { err = syscall.Fchmod(int(fd), 0o600) }); cerr != nil {
			return cerr
		}
		return err
	}}
	l, err := lc.Listen(base, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	mux := http.NewServeMux()
	if api != nil {
		path, handler := trellisv1connect.NewVNetServiceHandler(api, connect.WithReadMaxBytes(maxMessage))
		mux.Handle(path, wire.Versioned(handler, api.Version()))
	} else {
		mux.Handle("/", redirectToVNP())
	}
	mux.Handle("GET "+metrics.Path, metricsHandler)
	mux.Handle("GET "+CopyPath, storeCopy)
	mux.HandleFunc("GET "+HealthPath, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	// The runtime's own view of the process, for `bench deploy --profile` and `go
	// tool pprof`. Who may open the socket is root, and may look anyway.
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	s := newServer(base, l, mux, log)
	s.http.Protocols = protocols
	return s, nil
}

// redirectToVNP answers requests to a service without the role vnp.
func redirectToVNP() http.Handler {
	errs := connect.NewErrorWriter()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !errs.IsSupported(r) {
			http.NotFound(w, r)
			return
		}
		_ = errs.Write(w, r, connect.NewError(connect.CodeFailedPrecondition, // the client may be gone
			errors.New("this host has only the role agent; ask a host that has the role vnp")))
	})
}

// listenMetrics serves the metrics alone, over HTTP, at a host:port.
func listenMetrics(base context.Context, at string, metricsHandler http.Handler, log *slog.Logger) (*apiServer, error) {
	l, err := net.Listen("tcp", at)
	if err != nil {
		return nil, fmt.Errorf("offer metrics at %s: %w; name an address of this machine and a free port", at, err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET "+metrics.Path, metricsHandler)
	return newServer(base, l, mux, log), nil
}

func newServer(base context.Context, l net.Listener, h http.Handler, log *slog.Logger) *apiServer {
	return &apiServer{listener: l, http: &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second,
		BaseContext:       func(net.Listener) context.Context { return base },
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}}
}

func removeSocket(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return fmt.Errorf("listen on %s: %w", path, err)
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("%s is in the way and no socket; move it away, or name another address", path)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("remove the socket of an earlier service: %w", err)
	}
	return nil
}

// serve answers requests until shutdown.
func (s *apiServer) serve() error {
	if err := s.http.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the API: %w", err)
	}
	return nil
}

// close gives up a listener that nobody serves yet.
func (s *apiServer) close() error { return s.listener.Close() }

// shutdown ends the API; requests that do not end within drain are cut off.
func (s *apiServer) shutdown() error {
	ctx, cancel := context.WithTimeout(context.Background(), drain)
	defer cancel()
	err := s.http.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = s.http.Close()
	}
	if err != nil {
		return fmt.Errorf("end the API: %w", err)
	}
	return nil
}
