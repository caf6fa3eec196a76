package dataplane

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
)

// indexed is a table that decides about tenants. Its values lie in an array, in entries
// that name their key; a hash gives the number of each key's. An entry is never changed
// while a program may read it: a new value is another entry, to which the hash changes in one
// step, and the old one's number rests.
//
// A hash alone will not do: the kernel may give the memory of a replaced or removed value to
// another key at once, while a program still reads it (htab_elem_free, kernel/bpf/hashtab.c).
type indexed[K, V comparable] struct {
	rows    map[K]V
	index   *table[K, uint32]
	entries *ebpf.Map
	numbers allocator
	own     func(K, V) V // gives the value that names its key
}

// openIndexed reads an index and its entries. An entry that is another key's is none: the
// process before was killed between the two.
func openIndexed[K, V comparable](m pinnedMaps, index, entries string, own func(K, V) V, numbers allocator) (*indexed[K, V], error) {
	t := &indexed[K, V]{rows: map[K]V{}, entries: m[entries], numbers: numbers, own: own}
	var err error
	if t.index, err = openTable[K, uint32](m[index], index); err != nil {
		return nil, err
	}
	values, err := openTable[uint32, V](m[entries], entries)
	if err != nil {
		return nil, err
	}
	for key, number := range t.index.rows {
		value, ok := values.get(number)
		if !ok || own(key, value) != value {
			if err := t.index.remove(key); err != nil {
				return nil, err
			}
			continue
		}
		t.rows[key] = value
		t.numbers.reserve(number)
	}
	return t, nil
}

// get gives an entry.
func (t *indexed[K, V]) get(key K) (V, bool) {
	v, ok := t.rows[key]
	return v, ok
}

// put sets an entry. Every frame meets the old one or the new one.
func (t *indexed[K, V]) put(key K, value V) error {
	value = t.own(key, value)
	if have, ok := t.rows[key]; ok && have == value {
		return nil
	}
	number, err := t.numbers.allocate()
	if err != nil {
		return err
	}
	if err := t.entries.Put(number, value); err != nil {
		t.numbers.free(number)
		return fmt.Errorf("set an entry of the map %s: %w", t.index.name, err)
	}
	old, had := t.index.get(key)
	if err := t.index.put(key, number); err != nil {
		t.numbers.free(number)
		return err
	}
	if had {
		t.numbers.free(old)
	}
	t.rows[key] = value
	return nil
}

// remove deletes an entry; that it is missing is no error.
func (t *indexed[K, V]) remove(key K) error {
	number, ok := t.index.get(key)
	if !ok {
		return nil
	}
	if err := t.index.remove(key); err != nil {
		return err
	}
	t.numbers.free(number)
	delete(t.rows, key)
	return nil
}

// prune removes the entries that are not to be kept.
func (t *indexed[K, V]) prune(keep func(K) bool) error {
	var errs []error
	for key := range t.rows {
		if !keep(key) {
			errs = append(errs, t.remove(key))
		}
	}
	return errors.Join(errs...)
}
