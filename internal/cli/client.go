package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"connectrpc.com/connect"

	"trellis/api/trellis/v1/trellisv1connect"
	"trellis/internal/sandbox"
	"trellis/internal/wire"
)

// headerTimeout carries a call's time limit to the service (Connect protocol).
// It is set by hand, so that the client waits a little longer than the service
// and hears from it what was missing when the time was up.
const headerTimeout = "Connect-Timeout-Ms"

// grace is how much longer than the service the client waits.
const grace = 5 * time.Second

// socket returns the path of the default socket.
func (e *Env) socket() string { return filepath.Join(e.RunDir, "trellis.sock") }

// address returns where the service is, for people.
func (e *Env) address() string {
	if e.Address == "" {
		return "unix://" + e.socket()
	}
	return e.Address
}

// client returns a client of the service. Nothing is sent yet.
func (e *Env) client() (trellisv1connect.VNetServiceClient, error) {
	if err := e.locateService(); err != nil {
		return nil, err
	}
	network, addr, base, err := e.endpoint()
	if err != nil {
		return nil, err
	}
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	if strings.HasPrefix(base, "https:") {
		protocols.SetHTTP2(true)
	}
	var dialer net.Dialer
	transport := &http.Transport{
		Protocols: protocols,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, network, addr)
		},
	}
	return wire.NewVNetServiceClient(&http.Client{Transport: transport}, base, e.address(), version()), nil
}

// endpoint turns the address into what to dial and the URL that calls name.
func (e *Env) endpoint() (network, addr, base string, err error) {
	a := e.address()
	switch {
	case strings.HasPrefix(a, "unix://"):
		a = strings.TrimPrefix(a, "unix://")
		if a == "" {
			return "", "", "", usagef("--address unix:// names no socket; write unix:///run/trellis/trellis.sock")
		}
		return "unix", a, "http://trellis", nil
	case strings.HasPrefix(a, "/"), strings.HasPrefix(a, "./"):
		return "unix", a, "http://trellis", nil
	case strings.HasPrefix(a, "http://"), strings.HasPrefix(a, "https://"):
		scheme, rest, _ := strings.Cut(a, "://")
		host := strings.TrimRight(rest, "/")
		if strings.Contains(host, "/") || host == "" {
			return "", "", "", usagef("--address %q is not a service; write http://host:port", a)
		}
		addr := host
		if _, _, err := net.SplitHostPort(host); err != nil {
			port := "80"
			if scheme == "https" {
				port = "443"
			}
			addr = net.JoinHostPort(strings.Trim(host, "[]"), port)
		}
		return "tcp", addr, scheme + "://" + host, nil
	}
	return "", "", "", usagef("--address %q is not a service; write unix:///path or http://host:port", a)
}

// locateService chooses a sandbox's service where no other one is meant: no address is
// given, none runs in the run directory, and a sandbox's does below it. It says
// so in one line.
func (e *Env) locateService() error {
	if e.Address != "" {
		return nil
	}
	if c, err := net.Dial("unix", e.socket()); err == nil {
		return c.Close()
	} else if !notListening(err) {
		return nil // the call will say why
	}
	name, host, dir, err := sandbox.Serving(e.RunDir)
	if err != nil || dir == "" {
		return err
	}
	e.RunDir = dir
	fmt.Fprintf(e.Stderr, "trellis: no service runs on this machine itself; asking host %s of sandbox %s\n", host, name)
	return nil
}

// listening reports whether something listens at the service's address.
func (e *Env) listening(ctx context.Context) (bool, error) {
	network, addr, _, err := e.endpoint()
	if err != nil {
		return false, err
	}
	conn, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, network, addr)
	if err == nil {
		return true, conn.Close()
	}
	if notListening(err) {
		return false, nil
	}
	return false, err
}

// clientOrStart is client, after a service was started where none runs and this
// user may start one. It says so in one line and reports whether it did.
func (e *Env) clientOrStart(ctx context.Context) (c trellisv1connect.VNetServiceClient, started bool, err error) {
	if err := e.locateService(); err != nil {
		return nil, false, err
	}
	up, err := e.listening(ctx)
	if err != nil {
		return nil, false, err
	}
	if !up && e.Address == "" && e.start != nil && e.stateDir() != "" {
		if err := e.start(ctx, e); err != nil {
			return nil, false, fmt.Errorf("start the service in the background: %w", err)
		}
		started = true
	}
	c, err = e.client()
	return c, started, err
}

// limited returns a context for a call that the service must end within d, and
// the header that tells it so. Zero means no limit.
func limited(ctx context.Context, d time.Duration, header http.Header) (context.Context, context.CancelFunc) {
	if d <= 0 {
		return context.WithCancel(ctx)
	}
	header.Set(headerTimeout, strconv.FormatInt(max(d.Milliseconds(), 1), 10))
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(d+grace, func() { cancel(timeoutError(d)) })
	return ctx, func() { timer.Stop(); cancel(nil) }
}

// stallLimited returns a context for a call that ends by itself when nothing has
// happened for d, and a function to call whenever something has; it ends the
// call where the service does not. Zero means no limit.
func stallLimited(ctx context.Context, d time.Duration) (_ context.Context, moved func(), _ context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	if d <= 0 {
		return ctx, func() {}, func() { cancel(nil) }
	}
	timer := time.AfterFunc(d+grace, func() { cancel(timeoutError(d)) })
	return ctx, func() { timer.Reset(d + grace) }, func() { timer.Stop(); cancel(nil) }
}

// timeoutError is the cause of a context whose time was up.
type timeoutError time.Duration

func (e timeoutError) Error() string {
	return fmt.Sprintf("no answer within %s; the service may be busy, a longer --timeout waits for it", time.Duration(e))
}

// cause replaces the bare "canceled" of a call by the reason.
func cause(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	var limit timeoutError
	if errors.As(context.Cause(ctx), &limit) {
		return limit
	}
	return err
}

// notListening reports whether err means that nobody listens at the address.
func notListening(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED)
}

// isInvalidArgument reports whether the service refused what it was given.
func isInvalidArgument(err error) bool {
	return connect.CodeOf(err) == connect.CodeInvalidArgument
}

// describe turns err into a sentence with a remedy.
func describe(env *Env, err error) string {
	switch {
	case notListening(err) && isTransport(err):
		return fmt.Sprintf("no service answers at %s; start one with `trellis serve` as root, or name another with --address", env.address())
	case errors.Is(err, fs.ErrPermission) && isTransport(err):
		return fmt.Sprintf("%s is not open to this user; run as root", env.address())
	}
	var remote *connect.Error
	if !errors.As(err, &remote) {
		return err.Error()
	}
	switch text := remote.Message(); {
	case remote.Code() == connect.CodeUnimplemented:
		return fmt.Sprintf("the service at %s does not know this request; `trellis version` shows the versions of both: use one build", env.address())
	case remote.Code() == connect.CodeUnavailable && !connect.IsWireError(err):
		return fmt.Sprintf("the service at %s went away (%s); `trellis serve` starts it again, running networks stay as they are", env.address(), text)
	case text == "":
		return remote.Code().String()
	default:
		return text
	}
}

// isTransport reports whether err comes from connecting to the service.
func isTransport(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}
