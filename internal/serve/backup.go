package serve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"

	"trellis/internal/store"
)

// Copy is a copy of a store.
type Copy = store.Copy

// ReadCopy reads a copy, and refuses one that is damaged or of a later trellis.
func ReadCopy(r io.Reader) (*Copy, error) { return store.ReadCopy(r) }

// copyHandler answers with a copy of the store.
func (s *service) copyHandler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := s.store.ReadAll(r.Context(), s.config.Version)
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "application/octet-stream")
		if err := c.Write(w); err != nil {
			s.log.Debug("a copy of the store is cut off", "error", err) // its reader sees that
		}
	})
}

// CopyStore takes a copy of the store of an instance: by its service where that runs,
// else by itself.
func CopyStore(ctx context.Context, c Config) (*Copy, error) {
	c, err := c.complete()
	if err != nil {
		return nil, err
	}
	if copy, err := c.copyByService(ctx); err == nil || !isRefused(err) {
		return copy, err
	}
	s, done, err := c.openOffline(ctx)
	if err != nil {
		return nil, err
	}
	copy, err := s.ReadAll(ctx, c.Version)
	return copy, errors.Join(err, done())
}

// isRefused reports whether nobody serves at a socket.
func isRefused(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// copyByService asks the service for a copy.
func (c Config) copyByService(ctx context.Context) (*Copy, error) {
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", c.socket())
	}}
	defer transport.CloseIdleConnections()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://trellis"+CopyPath, nil)
	if err != nil {
		return nil, err
	}
	answer, err := (&http.Client{Transport: transport}).Do(r)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	switch answer.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound:
		return nil, errors.New("the service that runs is of an older trellis, which copies no stores; restart it with this version")
	default:
		why, _ := io.ReadAll(io.LimitReader(answer.Body, 4<<10))
		return nil, errors.New(strings.TrimSpace(string(why)))
	}
	copy, err := store.ReadCopy(answer.Body)
	if err != nil {
		return nil, fmt.Errorf("the service's answer: %w", err)
	}
	return copy, nil
}

// openOffline opens the store of an instance whose service does not run, and keeps that
// from starting until it is done.
func (c Config) openOffline(ctx context.Context) (_ *store.Store, done func() error, err error) {
	if len(c.Settings.StoreEndpoints) == 0 {
		there, err := store.Exists(c.storeDir())
		if err != nil {
			return nil, nil, err
		}
		if !there {
			return nil, nil, fmt.Errorf("no service runs (in %s), and there is no store in %s; name the instance by --run-dir and --state-dir, or --config", c.RunDir, c.storeDir())
		}
	}
	unlock, err := c.lockOffline()
	if err != nil {
		return nil, nil, err
	}
	c.Settings.StoreListen = ""
	s, err := c.openStore(ctx, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, nil, errors.Join(err, unlock())
	}
	return s, func() error { return errors.Join(s.Close(), unlock()) }, nil
}

// lockOffline keeps the service from starting.
func (c Config) lockOffline() (unlock func() error, err error) {
	if err := c.mkdirs(); err != nil {
		return nil, err
	}
	lock, err := c.acquireLock()
	if err != nil {
		return nil, err
	}
	return lock.Close, nil
}

// RestoreStore puts a copy in the place of the store of an instance, whose service must
// not run. With force, what is there is replaced; it gives the directory that an
// embedded one is kept in.
func RestoreStore(ctx context.Context, c Config, copy *Copy, force bool) (kept string, err error) {
	c, err = c.complete()
	if err != nil {
		return "", err
	}
	unlock, err := c.lockOffline()
	if err != nil {
		return "", err
	}
	if len(c.Settings.StoreEndpoints) > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.StartTimeout)
		defer cancel()
	}
	kept, err = store.Restore(ctx, store.Options{
		Dir: c.storeDir(), Endpoints: c.Settings.StoreEndpoints, TLS: c.Settings.TLS, Log: slog.New(slog.DiscardHandler),
	}, copy, force)
	return kept, errors.Join(err, unlock())
}

// StoreOf says where the store of an instance is, for people.
func StoreOf(c Config) string {
	c, err := c.complete()
	switch {
	case err != nil:
		return "the store"
	case len(c.Settings.StoreEndpoints) > 0:
		return "the store at " + strings.Join(c.Settings.StoreEndpoints, ", ")
	}
	return "the store in " + c.storeDir()
}
