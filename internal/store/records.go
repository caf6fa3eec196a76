package store

import (
	"context"
	"errors"
	"fmt"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"

	"trellis/internal/plan"
)

// Revision is the store's present revision. It grows with every write, so a
// generation that starts after it is newer than any that was, also of what a
// restored store does not know.
func (s *Store) Revision(ctx context.Context) (int64, error) {
	e, err := s.epoch(ctx)
	if err != nil {
		return 0, err
	}
	ctx, cancel := s.call(ctx)
	defer cancel()
	now, err := s.revision(ctx)
	return e.Floor + now, err
}

func (s *Store) revision(ctx context.Context) (int64, error) {
	r, err := s.client.Get(ctx, root, clientv3.WithKeysOnly())
	if err != nil {
		return 0, s.describeError(ctx, "read the store's revision", err)
	}
	s.noteAnswer(true)
	return r.Header.Revision, nil
}

// VNet reads a record; ErrNotFound when there is none.
func (s *Store) VNet(ctx context.Context, name string) (*VNetRecord, error) {
	kv, err := s.get(ctx, "read VNet "+name, vnetKey(name))
	if err != nil {
		return nil, err
	}
	if kv == nil {
		return nil, NotFound("there is no VNet %q; `trellis ls` lists those there are", name)
	}
	return readRecord(kv.Value, kv.ModRevision, name)
}

// VNets reads all records, sorted by name. It costs time in the size of all
// descriptions: see [Store.Summaries] and [Store.Names].
func (s *Store) VNets(ctx context.Context) ([]*VNetRecord, error) {
	bounded, cancel := s.call(ctx)
	defer cancel()
	r, err := s.client.Get(bounded, vnetPrefix, clientv3.WithPrefix())
	if err != nil {
		return nil, s.describeError(bounded, "list VNets", err)
	}
	records := make([]*VNetRecord, 0, len(r.Kvs))
	for _, kv := range r.Kvs {
		name := string(kv.Key[len(vnetPrefix):])
		value, err := s.load(ctx, kv.Value)
		if errors.Is(err, errReplaced) {
			rec, err := s.VNet(ctx, name)
			if errors.Is(err, ErrNotFound) {
				continue // forgotten meanwhile
			} else if err != nil {
				return nil, err
			}
			records = append(records, rec)
			continue
		} else if err != nil {
			return nil, err
		}
		rec, err := readRecord(value, kv.ModRevision, name)
		if err != nil {
			return nil, err
		}
		records = append(records, rec)
	}
	return records, nil
}

// Names lists the names of all VNets, sorted.
func (s *Store) Names(ctx context.Context) ([]string, error) {
	ctx, cancel := s.call(ctx)
	defer cancel()
	r, err := s.client.Get(ctx, vnetPrefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		return nil, s.describeError(ctx, "list VNets", err)
	}
	names := make([]string, len(r.Kvs))
	for i, kv := range r.Kvs {
		names[i] = string(kv.Key[len(vnetPrefix):])
	}
	return names, nil
}

func readRecord(value []byte, revision int64, name string) (*VNetRecord, error) {
	rec := &VNetRecord{}
	if err := decode(value, rec); err != nil {
		return nil, fmt.Errorf("read VNet %s: %w", name, err)
	}
	if rec.Spec == nil {
		return nil, fmt.Errorf("read VNet %s: the stored record has no description", name)
	}
	rec.revision = revision
	return rec, nil
}

// Plan reads the plan of a VNet for a substrate node; ErrNotFound when there is
// none.
func (s *Store) Plan(ctx context.Context, host, name string) (*plan.Plan, error) {
	kv, err := s.get(ctx, "read the plan of "+name, planKey(host, name))
	if err != nil {
		return nil, err
	}
	if kv == nil {
		return nil, fmt.Errorf("plan of %s for %s: %w", name, host, ErrNotFound)
	}
	p := &plan.Plan{}
	if err := decode(kv.Value, p); err != nil {
		return nil, fmt.Errorf("read the plan of %s: %w", name, err)
	}
	return p, nil
}

// IDRanges tells which VNet owns which id range, by the ranges' first ids.
func (s *Store) IDRanges(ctx context.Context) (map[uint32]string, error) {
	ctx, cancel := s.call(ctx)
	defer cancel()
	r, err := s.client.Get(ctx, idsPrefix, clientv3.WithPrefix())
	if err != nil {
		return nil, s.describeError(ctx, "list id ranges", err)
	}
	owners := make(map[uint32]string, len(r.Kvs))
	for _, kv := range r.Kvs {
		var base uint32
		if _, err := fmt.Sscanf(string(kv.Key), idsPrefix+"%x", &base); err != nil {
			return nil, fmt.Errorf("id range %q in the store: %w", kv.Key, err)
		}
		owners[base] = string(kv.Value)
	}
	return owners, nil
}

// Put writes a record and its plans, by substrate node: all of it, or nothing. A
// record that was read is replaced if it is still as it was read; one that was
// not read must be new. What the plans were made by, the substrate nodes as they were
// read, must be so still. Otherwise, and when the record's id range is another
// VNet's, nothing is written and the error is ErrConflict.
//
// The record's Hosts are completed by those of the plans. A nil plan takes the
// host's plan and status out of the store, and the host off the record's Hosts.
func (s *Store) Put(ctx context.Context, rec *VNetRecord, plans map[string]*plan.Plan, read ...HostState) error {
	name := rec.Name()
	doing := "store VNet " + name
	for host, p := range plans {
		if p == nil {
			rec.Hosts = slices.DeleteFunc(rec.Hosts, func(h string) bool { return h == host })
		} else if !slices.Contains(rec.Hosts, host) {
			rec.Hosts = append(rec.Hosts, host)
		}
	}
	slices.Sort(rec.Hosts)
	entries, ops, empty, err := encodePut(rec, plans)
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	size := 0
	for _, e := range entries {
		size += len(e.value)
	}
	if size > maxValue {
		return fmt.Errorf("%s: its plans have %d MiB compressed, at most %d MiB can be stored; split the network", doing, size>>20, maxValue>>20)
	}
	if err := s.checkPutSpace(ctx, size, empty); err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	needs := append(hostsUnchanged(read), clientv3.Compare(clientv3.ModRevision(vnetKey(name)), "=", rec.revision))
	if rec.IDBase != 0 {
		if rec.revision == 0 {
			needs = append(needs, clientv3.Compare(clientv3.CreateRevision(idsKey(rec.IDBase)), "=", 0))
			ops = append(ops, clientv3.OpPut(idsKey(rec.IDBase), name))
		} else {
			needs = append(needs, clientv3.Compare(clientv3.Value(idsKey(rec.IDBase)), "=", name))
		}
	}
	chunks, err := s.spill(ctx, doing, entries, rec.Generation)
	if err != nil {
		s.discard(ctx, chunks)
		return err
	}
	for _, e := range entries {
		ops = append(ops, clientv3.OpPut(e.key, string(e.value)))
	}
	revision, err := s.commit(ctx, doing, min(size, maxInline), needs, nest(ops))
	if errors.Is(err, ErrConflict) { // of any other error, it may be there all the same
		s.discard(ctx, chunks)
	}
	if err != nil {
		return err
	}
	rec.revision = revision
	return nil
}

// encodePut gives what Put is to write, what it is to remove, and whether the plans
// ask for nothing but removal.
func encodePut(rec *VNetRecord, plans map[string]*plan.Plan) (entries []entry, ops []clientv3.Op, empty bool, err error) {
	name := rec.Name()
	add := func(key string, v any) error {
		value, err := encode(v)
		entries = append(entries, entry{key, value})
		ops = append(ops, chunksBefore(key, rec.Generation))
		return err
	}
	if err := errors.Join(add(vnetKey(name), rec), add(summaryKey(name), rec.Summary())); err != nil {
		return nil, nil, false, err
	}
	empty = true
	for host, p := range plans {
		key := planKey(host, name)
		if p == nil {
			ops = append(ops, clientv3.OpDelete(key), clientv3.OpDelete(chunksOf(key), clientv3.WithPrefix()), clientv3.OpDelete(statusKey(name, host)))
			continue
		}
		empty = empty && p.Empty()
		if err := add(key, p); err != nil {
			return nil, nil, false, err
		}
	}
	return entries, ops, empty, nil
}

// checkPutSpace fails with ErrNoSpace unless so much can be written; removal needs
// less.
func (s *Store) checkPutSpace(ctx context.Context, size int, removal bool) error {
	if removal {
		return s.checkRemovalSpace(spaceToRemove)
	}
	if err := s.checkRemoteSpace(ctx); err != nil {
		return err
	}
	if err := s.checkSpace(spaceToWrite + 2*uint64(size)); err != nil {
		return err
	}
	if s.remote() {
		return nil
	}
	return s.takeBallast() // once there is room again
}

// hostsUnchanged are the conditions that substrate nodes are as they were read.
func hostsUnchanged(read []HostState) []clientv3.Cmp {
	newest := int64(0)
	var each []clientv3.Cmp
	for _, h := range read {
		newest = max(newest, h.readAt)
		each = append(each, clientv3.Compare(clientv3.ModRevision(hostKey(h.Name, fieldRecord)), "=", h.revision))
	}
	if len(each) <= maxOps {
		return each
	}
	// More than etcd compares: none of all may have changed.
	return []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(hostPrefix), "<", newest+1).WithPrefix()}
}

// Forget removes all that the store has of a VNet, if the record is still as it
// was read, and ErrConflict otherwise.
func (s *Store) Forget(ctx context.Context, rec *VNetRecord) error {
	name := rec.Name()
	doing := "forget VNet " + name
	if err := s.checkRemovalSpace(spaceToRemove); err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	ops := []clientv3.Op{
		clientv3.OpDelete(vnetKey(name)),
		clientv3.OpDelete(chunksOf(vnetKey(name)), clientv3.WithPrefix()),
		clientv3.OpDelete(summaryKey(name)),
		clientv3.OpDelete(statusKeys(name), clientv3.WithPrefix()),
	}
	if rec.IDBase != 0 {
		ops = append(ops, clientv3.OpDelete(idsKey(rec.IDBase)))
	}
	for _, host := range rec.Hosts {
		key := planKey(host, name)
		ops = append(ops, clientv3.OpDelete(key), clientv3.OpDelete(chunksOf(key), clientv3.WithPrefix()))
	}
	_, err := s.commit(ctx, doing, 0,
		[]clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(vnetKey(name)), "=", rec.revision)}, nest(ops))
	return err
}

// commit runs a transaction and gives its revision.
func (s *Store) commit(ctx context.Context, doing string, size int, needs []clientv3.Cmp, ops []clientv3.Op) (int64, error) {
	r, err := s.transact(ctx, doing, size, needs, ops)
	if err != nil {
		return 0, err
	}
	return r.Header.Revision, nil
}

// transact runs a transaction that sends about so many bytes; ErrConflict where
// what it needs does not hold.
func (s *Store) transact(ctx context.Context, doing string, size int, needs []clientv3.Cmp, ops []clientv3.Op) (*clientv3.TxnResponse, error) {
	ctx, cancel := s.callFor(ctx, size)
	defer cancel()
	r, err := s.client.Txn(ctx).If(needs...).Then(ops...).Commit()
	if err != nil {
		return nil, s.describeError(ctx, doing, err)
	}
	s.noteAnswer(true)
	if !r.Succeeded {
		return nil, fmt.Errorf("%s: %w", doing, ErrConflict)
	}
	s.countWritten(size)
	return r, nil
}
