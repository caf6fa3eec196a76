package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// maxKeys bounds one draw; a VNet has fewer spans.
const maxKeys = 1 << 20

// DrawKeys gives n EGRE keys that no span has, in use or drawn. They are the
// caller's from then on: those that do not come into a record are lost, which
// is fine with four billion of them.
func (s *Store) DrawKeys(ctx context.Context, n int) ([]uint32, error) {
	for {
		keys, c, revision, err := s.nextKeys(ctx, n)
		if err != nil || n == 0 {
			return nil, err
		}
		value, err := encode(c)
		if err != nil {
			return nil, err
		}
		_, err = s.commit(ctx, "draw EGRE keys", len(value),
			[]clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(nextKeyKey), "=", revision)},
			[]clientv3.Op{clientv3.OpPut(nextKeyKey, string(value))})
		if errors.Is(err, ErrConflict) {
			continue // somebody has drawn meanwhile
		}
		if err != nil {
			return nil, err
		}
		return keys, nil
	}
}

// PeekKeys gives the keys that DrawKeys would give now, for a plan that is
// only looked at. Before the first draw they are examples.
func (s *Store) PeekKeys(ctx context.Context, n int) ([]uint32, error) {
	keys, _, _, err := s.nextKeys(ctx, n)
	return keys, err
}

// nextKeys gives the next n keys, the counter after them, and the revision of
// the counter before.
func (s *Store) nextKeys(ctx context.Context, n int) ([]uint32, keyCounter, int64, error) {
	var c keyCounter
	if n < 0 || n > maxKeys {
		return nil, c, 0, fmt.Errorf("draw EGRE keys: %d at once, at most %d can be; split the network", n, maxKeys)
	}
	bounded, cancel := s.call(ctx)
	defer cancel()
	r, err := s.client.Get(bounded, nextKeyKey)
	if err != nil {
		return nil, c, 0, s.describeError(bounded, "draw EGRE keys", err)
	}
	var revision int64
	if len(r.Kvs) == 0 {
		c.Start = rand.Uint32()
		c.Next = c.Start
	} else if err := decode(r.Kvs[0].Value, &c); err != nil {
		return nil, c, 0, fmt.Errorf("draw EGRE keys: %w", err)
	} else {
		revision = r.Kvs[0].ModRevision
	}
	c.begin()
	// The records that are read after the counter hold all keys that were drawn
	// a round ago.
	ahead := c
	used := map[uint32]bool{}
	keys, err := ahead.draw(n, used)
	if err != nil {
		return nil, c, 0, fmt.Errorf("draw EGRE keys: the installation's secret: %w", err)
	}
	if !ahead.Round {
		return keys, ahead, revision, nil
	}
	records, err := s.VNets(ctx)
	if err != nil {
		return nil, c, 0, err
	}
	for _, rec := range records {
		for _, key := range rec.Keys {
			used[key] = true
		}
	}
	keys, err = c.draw(n, used)
	return keys, c, revision, err
}
