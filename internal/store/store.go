package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"trellis/internal/pki"
)

// Options say how to open a store.
type Options struct {
	// Dir is the store's own directory; made when it is not there. Not used with
	// Endpoints.
	Dir string
	// Listen is the host:port at which other hosts reach the store; empty: nobody
	// but this process does.
	Listen string
	// Endpoints are the URLs, https://host:port, of an etcd that is used instead
	// of one in this process: another host's, or a cluster's members.
	Endpoints []string
	// TLS are this host's certificate and the authority whose certificates are
	// accepted. Needed with Listen and with Endpoints.
	TLS pki.Files
	// Log receives what etcd says, from warnings up. Nil: [slog.Default].
	Log *slog.Logger

	now       func() time.Time // the machine's clock; nil: time.Now
	restoring bool             // one that a restore was cut off of will do
}

// Store is an open store. Its methods may be called side by side.
type Store struct {
	dir   string // empty: the store of others
	where string // for messages: "the store in DIR", "the store at URL"
	log   *slog.Logger
	// restoring lets a store be opened that a restore was cut off of.
	restoring bool
	now       func() time.Time
	prober    *prober // nil: the store is in this process
	lock      *os.File
	server    *embed.Etcd
	client    *clientv3.Client

	// life ends when the store is closed or etcd has died, with the reason as
	// its cause.
	life context.Context
	end  context.CancelCauseFunc

	answered   atomic.Bool  // a store elsewhere has answered once
	unanswered atomic.Bool  // its last call had no answer
	written    atomic.Int64 // bytes since the last compaction
	compact    chan struct{}
	workers    sync.WaitGroup
	closing    sync.Once
}

var errClosed = errors.New("the store is closed")

// Done is closed when the store can no longer be used; Err then says why.
func (s *Store) Done() <-chan struct{} { return s.life.Done() }

// Err says why the store can no longer be used; nil while it can, or when it
// was closed in order.
func (s *Store) Err() error {
	if err := context.Cause(s.life); err != nil && !errors.Is(err, errClosed) {
		return err
	}
	return nil
}

// call bounds one operation: by the life of the store, and, where that is
// elsewhere, by the time that an answer may take.
func (s *Store) call(ctx context.Context) (context.Context, context.CancelFunc) {
	return s.callFor(ctx, 0)
}

// callFor is call for an operation that sends so many bytes.
func (s *Store) callFor(ctx context.Context, size int) (context.Context, context.CancelFunc) {
	ctx, release := s.bind(ctx)
	if !s.remote() {
		return ctx, release
	}
	timeout := callTimeout + time.Duration(size)*time.Second/bytesPerSecond
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, s.unavailable())
	return ctx, func() { cancel(); release() }
}

// bind ends a context with the life of the store.
func (s *Store) bind(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.life, func() { cancel(context.Cause(s.life)) })
	return ctx, func() { stop(); cancel(nil) }
}

// describeError turns an error of etcd's into one that says what to do. The context
// is that of the call.
func (s *Store) describeError(ctx context.Context, doing string, err error) error {
	if cause := context.Cause(s.life); cause != nil {
		return fmt.Errorf("%s: %w", doing, cause)
	}
	if cause := context.Cause(ctx); cause != nil {
		if errors.Is(cause, ErrUnavailable) {
			s.noteAnswer(false)
		}
		return fmt.Errorf("%s: %w", doing, cause)
	}
	switch {
	case isNoSpace(err):
		return fmt.Errorf("%s: %s is full: remove VNets with `trellis down`, then try again: %w", doing, s.where, ErrNoSpace)
	case s.remote() && isTooLarge(err):
		return fmt.Errorf("%s: it does not fit into one request to %s; start that etcd with a larger --max-request-bytes and --max-txn-ops, or split the network: %w", doing, s.where, err)
	case s.remote() && isUnavailable(err):
		s.noteAnswer(false)
		return fmt.Errorf("%s: %w", doing, s.unavailable())
	}
	return fmt.Errorf("%s: %w", doing, err)
}
