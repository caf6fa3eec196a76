package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// keyCounter is where the next EGRE key comes from. It starts at a random place
// and only goes forward, so that a key that was given up comes back after all
// four billion others, when no stale peer can still send it.
type keyCounter struct {
	Start uint32 `json:"start"`
	Next  uint32 `json:"next"`
	// Round is set once the counter has come past its start: from then on some
	// of the keys ahead may be in use.
	Round bool `json:"round,omitempty"`
}

// draw takes n keys that are not in use, and never 0.
func (c *keyCounter) draw(n int, used map[uint32]bool) []uint32 {
	keys := make([]uint32, 0, n)
	for len(keys) < n {
		key := c.Next
		c.Next++
		c.Round = c.Round || c.Next == c.Start
		if key != 0 && !used[key] {
			keys = append(keys, key)
		}
	}
	return keys
}

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
	// The records that are read after the counter hold all keys that were drawn
	// a round ago.
	ahead := c
	used := map[uint32]bool{}
	if keys := ahead.draw(n, used); !ahead.Round {
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
	return c.draw(n, used), c, revision, nil
}
