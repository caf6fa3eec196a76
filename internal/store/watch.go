package store

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"

	"trellis/internal/plan"
)

// WatchPlans sends the plans of a substrate node: those there are, Synced, then
// each change. The channel is closed when ctx ends or the store does.
func (s *Store) WatchPlans(ctx context.Context, host string) <-chan PlanEvent {
	prefix := planKeys(host)
	return watch(ctx, s, prefix, func(c change) PlanEvent {
		e := PlanEvent{Synced: c.synced, Revision: c.revision}
		if c.synced {
			return e
		}
		e.VNet = c.key[len(prefix):]
		if c.value != nil {
			p := &plan.Plan{}
			if err := decode(c.value, p); err != nil {
				e.Err = fmt.Errorf("read the plan of %s: %w", e.VNet, err)
			} else {
				e.Plan = p
			}
		}
		return e
	})
}

// WatchStatus sends what the agents report on one VNet, or on all when name is
// empty: what there is, Synced, then each change. The channel is closed when
// ctx ends or the store does.
func (s *Store) WatchStatus(ctx context.Context, name string) <-chan StatusEvent {
	prefix := statusPrefix
	if name != "" {
		prefix = statusKeys(name)
	}
	return watch(ctx, s, prefix, func(c change) StatusEvent {
		e := StatusEvent{Synced: c.synced}
		if c.synced {
			return e
		}
		e.VNet, e.Host = splitStatusKey(c.key)
		if c.value != nil {
			st := &Status{}
			if err := decode(c.value, st); err != nil {
				e.Err = fmt.Errorf("read the status of %s: %w", e.VNet, err)
			} else {
				e.Status = st
			}
		}
		return e
	})
}

// change is one message of a watch, before its value is read.
type change struct {
	key    string
	value  []byte // nil: deleted
	synced bool
	// revision is the store's when the value was written, or at a later time when it
	// was not there; beyond all that were before, where the store was replaced.
	revision int64
}

// Pauses before a watch that etcd has broken off is set up anew.
const (
	retryWatch            = 50 * time.Millisecond
	retryWatchUnavailable = 500 * time.Millisecond // while nobody answers
)

// watch sends the values under prefix and their changes, as read by read.
func watch[E any](ctx context.Context, s *Store, prefix string, read func(change) E) <-chan E {
	out := make(chan E)
	ctx, cancel := s.bind(ctx)
	go func() {
		defer close(out)
		defer cancel()
		w := watcher[E]{s: s, prefix: prefix, read: read, out: out, known: map[string]int64{}}
		for ctx.Err() == nil {
			err := w.follow(ctx)
			if ctx.Err() != nil {
				return
			}
			if errors.Is(err, rpctypes.ErrCompacted) {
				continue
			}
			if !w.broken && !isUnavailable(err) { // that is logged once for all
				s.log.Warn("watch of the store broke off, goes on when it answers", "keys", prefix, "error", err)
			}
			w.broken = true
			pause := retryWatch
			if isUnavailable(err) {
				pause = retryWatchUnavailable
			}
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
		}
	}()
	return out
}

// streams counts the streams of watches, to tell them apart.
var streams atomic.Uint64

// watcher is the state of one watch.
type watcher[E any] struct {
	s      *Store
	prefix string
	read   func(change) E
	out    chan<- E
	known  map[string]int64 // revision last sent, by key
	synced bool
	broken bool  // logged that the watch has broken off, and not that it goes on
	newest int64 // revision of the store
	offset int64 // of the revisions that are sent
}

func (w *watcher[E]) send(ctx context.Context, c change) error {
	select {
	case w.out <- w.read(c):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// follow sends the difference between what is known and what is there, and
// then every change until the watch breaks off.
func (w *watcher[E]) follow(ctx context.Context) error {
	bounded, cancel := w.s.call(ctx)
	defer cancel()
	r, err := w.s.client.Get(bounded, w.prefix, clientv3.WithPrefix())
	if err != nil {
		return w.s.describeError(bounded, "watch the store", err)
	}
	cancel()
	w.broken = false
	if r.Header.Revision < w.newest { // another store has taken its place
		w.offset += w.newest
	}
	w.newest = r.Header.Revision
	w.s.noteAnswer(true)
	there := make(map[string]bool, len(r.Kvs))
	for _, kv := range r.Kvs {
		key := string(kv.Key)
		there[key] = true
		if w.known[key] == kv.ModRevision {
			continue
		}
		value, err := w.s.load(ctx, kv.Value)
		if errors.Is(err, errReplaced) {
			continue // the watch has the later value
		} else if err != nil {
			return err
		}
		w.known[key] = kv.ModRevision
		if err := w.send(ctx, change{key: key, value: value, revision: w.offset + kv.ModRevision}); err != nil {
			return err
		}
	}
	for key := range w.known {
		if !there[key] {
			delete(w.known, key)
			if err := w.send(ctx, change{key: key, revision: w.offset + r.Header.Revision}); err != nil {
				return err
			}
		}
	}
	if !w.synced {
		w.synced = true
		if err := w.send(ctx, change{synced: true, revision: w.offset + r.Header.Revision}); err != nil {
			return err
		}
	}
	return w.changes(ctx, r.Header.Revision+1)
}

func (w *watcher[E]) changes(ctx context.Context, from int64) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if w.s.remote() {
		// A member that has lost its cluster ends the watch, and another is asked.
		ctx = clientv3.WithRequireLeader(ctx)
	}
	// Each watch gets a stream of its own, which etcd's client tells apart by the
	// metadata of its context. On a shared one, the client's and the embedded
	// server's loops can wait for each other for ever when some watches end while
	// others hear of changes: they are joined by channels without room.
	ctx = metadata.AppendToOutgoingContext(ctx, "trellis-watch", strconv.FormatUint(streams.Add(1), 10))
	for r := range w.s.client.Watch(ctx, w.prefix, clientv3.WithPrefix(), clientv3.WithRev(from)) {
		if err := r.Err(); err != nil {
			return err
		}
		w.newest = max(w.newest, r.Header.Revision)
		for _, e := range r.Events {
			c := change{key: string(e.Kv.Key), revision: w.offset + e.Kv.ModRevision}
			if e.Type == mvccpb.Event_PUT {
				value, err := w.s.load(ctx, e.Kv.Value)
				if errors.Is(err, errReplaced) {
					continue // a later event has the later value
				} else if err != nil {
					return err
				}
				c.value = value
				w.known[c.key] = e.Kv.ModRevision
			} else {
				delete(w.known, c.key)
			}
			if err := w.send(ctx, c); err != nil {
				return err
			}
		}
	}
	return errors.New("etcd has ended the watch")
}
