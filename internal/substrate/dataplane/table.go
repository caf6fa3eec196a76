package dataplane

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// table is a pinned map, and all that it holds, in memory. One process at a time
// writes the maps, so what has been read once is known from then on: whoever asks
// costs the kernel nothing, and nobody walks a map for one entry.
type table[K, V comparable] struct {
	m    *ebpf.Map
	name string
	rows map[K]V
}

// batch is how many entries one system call reads.
const batch = 4096

// openTable reads a map. Of an array, entries of zeros are none.
func openTable[K, V comparable](m *ebpf.Map, name string) (*table[K, V], error) {
	t := &table[K, V]{m: m, name: name, rows: map[K]V{}}
	if err := t.read(); err != nil {
		return nil, fmt.Errorf("read the map %s: %w", name, err)
	}
	return t, nil
}

func (t *table[K, V]) read() error {
	var (
		none   V
		cursor ebpf.MapBatchCursor
		keys   = make([]K, batch)
		values = make([]V, batch)
	)
	for {
		n, err := t.m.BatchLookup(&cursor, keys, values, nil)
		for i := range n {
			if t.m.Type() != ebpf.Array || values[i] != none {
				t.rows[keys[i]] = values[i]
			}
		}
		switch {
		case errors.Is(err, ebpf.ErrKeyNotExist): // that was all
			return nil
		case errors.Is(err, ebpf.ErrNotSupported), errors.Is(err, unix.ENOSPC):
			return t.walk()
		case err != nil:
			return err
		}
	}
}

// walk reads entry by entry: where one place of a hash holds more than a batch.
func (t *table[K, V]) walk() error {
	var (
		key   K
		value V
		none  V
	)
	it := t.m.Iterate()
	for it.Next(&key, &value) {
		if t.m.Type() != ebpf.Array || value != none {
			t.rows[key] = value
		}
	}
	return it.Err()
}

// get gives an entry.
func (t *table[K, V]) get(key K) (V, bool) {
	v, ok := t.rows[key]
	return v, ok
}

// put sets an entry. One that is there is not written again: the kernel may give
// the memory of a replaced value to another key at once, while a program still
// reads it.
func (t *table[K, V]) put(key K, value V) error {
	if have, ok := t.rows[key]; ok && have == value {
		return nil
	}
	if err := t.m.Put(key, value); err != nil {
		return fmt.Errorf("set an entry of the map %s: %w", t.name, err)
	}
	t.rows[key] = value
	return nil
}

// remove deletes an entry; that it is missing is no error. Of an array it only
// forgets it.
func (t *table[K, V]) remove(key K) error {
	if _, ok := t.rows[key]; !ok {
		return nil
	}
	if t.m.Type() != ebpf.Array {
		if err := t.m.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("delete an entry of the map %s: %w", t.name, err)
		}
	}
	delete(t.rows, key)
	return nil
}

// prune removes the entries that are not to be kept.
func (t *table[K, V]) prune(keep func(K) bool) error {
	var errs []error
	for key := range t.rows {
		if !keep(key) {
			errs = append(errs, t.remove(key))
		}
	}
	return errors.Join(errs...)
}
