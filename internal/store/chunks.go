package store

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// etcd takes 1.5 MiB a request, and 128 operations a transaction, where nobody has
// set other limits, and a plan of ten thousand nodes has more. So a transaction whose
// values are more than maxInline has the largest of them written before, in chunks,
// in requests of their own. What the transaction then writes in their place names
// the chunks, which nobody else writes: they never change. A transaction that does
// not come about leaves chunks that nothing names; the next one of the same value
// with a larger generation removes them, and so does the start of an embedded store.
const (
	maxInline = 768 << 10 // bytes of a transaction's values
	chunkSize = 1 << 20   // bytes
	maxOps    = 100       // operations of a transaction, and of each one nested in it
	maxValue  = 128 << 20 // bytes, compressed, of all that is stored at once
)

// chunked stands before the JSON of a chunkList, in the place of a value.
const chunked = 'c'

// chunkList names the chunks of a value.
type chunkList struct {
	Prefix string `json:"prefix"` // of their keys, without [chunkPrefix]
	Count  int    `json:"count"`
	Size   int    `json:"size"` // bytes
}

func (l chunkList) key(i int) string { return fmt.Sprintf("%s%s%06d", chunkPrefix, l.Prefix, i) }

// chunksOf is the prefix of all chunks of a value, of whichever generation.
func chunksOf(key string) string { return chunkPrefix + strings.TrimPrefix(key, root) + "/" }

// chunksBefore removes the chunks of a value's earlier generations.
func chunksBefore(key string, generation int64) clientv3.Op {
	prefix := chunksOf(key)
	return clientv3.OpDelete(prefix, clientv3.WithRange(prefix+chunkGeneration(generation)))
}

func chunkGeneration(generation int64) string { return fmt.Sprintf("%016x", generation) }

// entry is a key and its encoded value.
type entry struct {
	key   string
	value []byte
}

// spill writes the largest values in chunks until the others fit into a transaction,
// and puts the lists of their chunks in the place of them. It gives what was written,
// also with an error.
func (s *Store) spill(ctx context.Context, doing string, entries []entry, generation int64) (written []chunkList, err error) {
	size := 0
	order := make([]*entry, len(entries))
	for i := range entries {
		order[i] = &entries[i]
		size += len(entries[i].value)
	}
	slices.SortStableFunc(order, func(a, b *entry) int { return cmp.Compare(len(b.value), len(a.value)) })
	var ops []clientv3.Op // of one request
	pending := 0          // bytes of them
	flush := func() error {
		if len(ops) == 0 {
			return nil
		}
		_, err := s.commit(ctx, doing, pending, nil, ops)
		ops, pending = nil, 0
		return err
	}
	for _, e := range order {
		if size <= maxInline {
			break
		}
		prefix := strings.TrimPrefix(chunksOf(e.key), chunkPrefix) + chunkGeneration(generation) + "-" + rand.Text() + "/"
		l := chunkList{Prefix: prefix, Size: len(e.value)}
		written = append(written, l)
		for chunk := range slices.Chunk(e.value, chunkSize) {
			if len(ops) == maxOps || pending+len(chunk) > chunkSize {
				if err := flush(); err != nil {
					return written, err
				}
			}
			ops = append(ops, clientv3.OpPut(l.key(l.Count), string(chunk)))
			pending += len(chunk)
			l.Count++
		}
		text, err := json.Marshal(l)
		if err != nil {
			return written, fmt.Errorf("%s: %w", doing, err)
		}
		size -= len(e.value) - len(text) - 1
		e.value = append([]byte{chunked}, text...)
	}
	return written, flush()
}

// discard removes chunks that have come to nothing. What stays is removed later.
func (s *Store) discard(ctx context.Context, lists []chunkList) {
	for _, l := range lists {
		_, err := s.commit(ctx, "remove what was not stored", 0, nil, []clientv3.Op{clientv3.OpDelete(chunkPrefix+l.Prefix, clientv3.WithPrefix())})
		if err != nil {
			s.log.Debug("chunks stay until the next change", "keys", l.Prefix, "error", err)
			return
		}
	}
}

// errReplaced is the error of a value whose chunks are gone, since another one has
// been written in its place.
var errReplaced = errors.New("replaced by a later value")

// load gives a value that is perhaps in chunks. errReplaced: read it again.
func (s *Store) load(ctx context.Context, value []byte) ([]byte, error) {
	if len(value) == 0 || value[0] != chunked {
		return value, nil
	}
	var l chunkList
	if err := json.Unmarshal(value[1:], &l); err != nil {
		return nil, fmt.Errorf("stored value is damaged: %w", err)
	}
	bounded, cancel := s.callFor(ctx, l.Size)
	defer cancel()
	r, err := s.client.Get(bounded, chunkPrefix+l.Prefix, clientv3.WithPrefix())
	if err != nil {
		return nil, s.describeError(bounded, "read a large value", err)
	}
	whole := make([]byte, 0, l.Size)
	for _, kv := range r.Kvs {
		whole = append(whole, kv.Value...)
	}
	if len(r.Kvs) != l.Count || len(whole) != l.Size {
		return nil, errReplaced
	}
	return whole, nil
}

// get reads one value, chunks and all; nil if there is none.
func (s *Store) get(ctx context.Context, doing, key string) (*mvccpb.KeyValue, error) {
	for replaced := false; ; replaced = true {
		bounded, cancel := s.call(ctx)
		r, err := s.client.Get(bounded, key)
		if err != nil {
			err = s.describeError(bounded, doing, err)
		}
		cancel()
		if err != nil || len(r.Kvs) == 0 {
			return nil, err
		}
		s.noteAnswer(true)
		kv := r.Kvs[0]
		revision := kv.ModRevision
		if kv.Value, err = s.load(ctx, kv.Value); err == nil {
			return kv, nil
		}
		if !errors.Is(err, errReplaced) {
			return nil, fmt.Errorf("%s: %w", doing, err)
		}
		if again, _ := s.revisionOf(ctx, key); replaced && again == revision {
			return nil, fmt.Errorf("%s: a part of it is missing in %s; `trellis store check` names all such, restore a copy by `trellis store restore FILE`", doing, s.where)
		}
	}
}

// revisionOf is the revision of a key; 0 if there is none.
func (s *Store) revisionOf(ctx context.Context, key string) (int64, error) {
	bounded, cancel := s.call(ctx)
	defer cancel()
	r, err := s.client.Get(bounded, key, clientv3.WithKeysOnly())
	if err != nil || len(r.Kvs) == 0 {
		return 0, err
	}
	return r.Kvs[0].ModRevision, nil
}

// nest puts operations into transactions within one, where they are more than etcd
// takes side by side.
func nest(ops []clientv3.Op) []clientv3.Op {
	if len(ops) <= maxOps {
		return ops
	}
	var nested []clientv3.Op
	for some := range slices.Chunk(ops, maxOps) {
		nested = append(nested, clientv3.OpTxn(nil, some, nil))
	}
	return nested
}

// sweepChunks removes the chunks that nothing names. Nobody else may write meanwhile.
func (s *Store) sweepChunks(ctx context.Context) error {
	bounded, cancel := s.call(ctx)
	defer cancel()
	r, err := s.client.Get(bounded, chunkPrefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		return s.describeError(bounded, "look for what was not stored", err)
	}
	seen := map[string]bool{}
	for _, kv := range r.Kvs {
		prefix := string(kv.Key[:strings.LastIndexByte(string(kv.Key), '/')+1])
		if seen[prefix] {
			continue
		}
		seen[prefix] = true
		owner := root + strings.TrimPrefix(prefix[:strings.LastIndexByte(strings.TrimSuffix(prefix, "/"), '/')], chunkPrefix)
		named, err := s.client.Get(bounded, owner)
		if err != nil {
			return s.describeError(bounded, "look for what was not stored", err)
		}
		if len(named.Kvs) > 0 && len(named.Kvs[0].Value) > 0 && named.Kvs[0].Value[0] == chunked {
			var l chunkList
			if json.Unmarshal(named.Kvs[0].Value[1:], &l) == nil && chunkPrefix+l.Prefix == prefix {
				continue
			}
		}
		if _, err := s.client.Delete(bounded, prefix, clientv3.WithPrefix()); err != nil {
			return s.describeError(bounded, "remove what was not stored", err)
		}
	}
	return nil
}
