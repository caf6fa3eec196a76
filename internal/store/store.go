package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
)

// Options say how to open a store.
type Options struct {
	// Dir is the store's own directory; made when it is not there.
	Dir string
	// Log receives what etcd says, from warnings up. Nil: [slog.Default].
	Log *slog.Logger
}

// Store is an open store. Its methods may be called side by side.
type Store struct {
	dir    string
	log    *slog.Logger
	lock   *os.File
	server *embed.Etcd
	client *clientv3.Client

	// life ends when the store is closed or etcd has died, with the reason as
	// its cause.
	life context.Context
	end  context.CancelCauseFunc

	written atomic.Int64 // bytes since the last compaction
	compact chan struct{}
	workers sync.WaitGroup
	closing sync.Once
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

// call bounds one operation by the life of the store.
func (s *Store) call(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.life, func() { cancel(context.Cause(s.life)) })
	return ctx, func() { stop(); cancel(nil) }
}

// explain turns an error of etcd's into one that says what to do. The context
// is that of the call.
func (s *Store) explain(ctx context.Context, doing string, err error) error {
	if cause := context.Cause(s.life); cause != nil {
		return fmt.Errorf("%s: %w", doing, cause)
	}
	if cause := context.Cause(ctx); cause != nil {
		return fmt.Errorf("%s: %w", doing, cause)
	}
	if isNoSpace(err) {
		return fmt.Errorf("%s: the store in %s is full: remove VNets with `trellis down`, then try again: %w", doing, s.dir, ErrNoSpace)
	}
	return fmt.Errorf("%s: %w", doing, err)
}
