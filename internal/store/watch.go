package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"trellis/internal/plan"
)

// WatchPlans tells the plans of a substrate node: those there are, Synced, then
// each change. The channel is closed when ctx ends or the store does.
func (s *Store) WatchPlans(ctx context.Context, host string) <-chan PlanEvent {
	prefix := planKeys(host)
	return watch(ctx, s, prefix, func(c change) PlanEvent {
		e := PlanEvent{Synced: c.synced}
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

// WatchStatus tells what the agents report on one VNet, or on all when name is
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
}

// retryWatch is the pause before a watch that etcd has broken off is set up anew.
const retryWatch = 50 * time.Millisecond

// watch tells the values under prefix and their changes, as read by read.
func watch[E any](ctx context.Context, s *Store, prefix string, read func(change) E) <-chan E {
	out := make(chan E)
	ctx, cancel := s.call(ctx)
	go func() {
		defer close(out)
		defer cancel()
		w := watcher[E]{s: s, prefix: prefix, read: read, out: out, known: map[string]int64{}}
		for ctx.Err() == nil {
			err := w.follow(ctx)
			if ctx.Err() != nil {
				return
			}
			if !errors.Is(err, rpctypes.ErrCompacted) {
				s.log.Warn("watch of the store broke off, goes on", "keys", prefix, "error", err)
				select {
				case <-time.After(retryWatch):
				case <-ctx.Done():
				}
			}
		}
	}()
	return out
}

// watcher is the state of one watch.
type watcher[E any] struct {
	s      *Store
	prefix string
	read   func(change) E
	out    chan<- E
	known  map[string]int64 // revision last told, by key
	synced bool
}

func (w *watcher[E]) tell(ctx context.Context, c change) error {
	select {
	case w.out <- w.read(c):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// follow tells the difference between what is known and what is there, and
// then every change until the watch breaks off.
func (w *watcher[E]) follow(ctx context.Context) error {
	r, err := w.s.client.Get(ctx, w.prefix, clientv3.WithPrefix())
	if err != nil {
		return err
	}
	there := make(map[string]bool, len(r.Kvs))
	for _, kv := range r.Kvs {
		key := string(kv.Key)
		there[key] = true
		if w.known[key] == kv.ModRevision {
			continue
		}
		w.known[key] = kv.ModRevision
		if err := w.tell(ctx, change{key: key, value: kv.Value}); err != nil {
			return err
		}
	}
	for key := range w.known {
		if !there[key] {
			delete(w.known, key)
			if err := w.tell(ctx, change{key: key}); err != nil {
				return err
			}
		}
	}
	if !w.synced {
		w.synced = true
		if err := w.tell(ctx, change{synced: true}); err != nil {
			return err
		}
	}
	return w.changes(ctx, r.Header.Revision+1)
}

func (w *watcher[E]) changes(ctx context.Context, from int64) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for r := range w.s.client.Watch(ctx, w.prefix, clientv3.WithPrefix(), clientv3.WithRev(from)) {
		if err := r.Err(); err != nil {
			return err
		}
		for _, e := range r.Events {
			c := change{key: string(e.Kv.Key)}
			if e.Type == mvccpb.Event_PUT {
				c.value = e.Kv.Value
				w.known[c.key] = e.Kv.ModRevision
			} else {
				delete(w.known, c.key)
			}
			if err := w.tell(ctx, c); err != nil {
				return err
			}
		}
	}
	return errors.New("etcd has ended the watch")
}
