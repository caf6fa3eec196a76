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
// generation that starts after it is newer than any that was.
func (s *Store) Revision(ctx context.Context) (int64, error) {
	ctx, cancel := s.call(ctx)
	defer cancel()
	return s.revision(ctx)
}

func (s *Store) revision(ctx context.Context) (int64, error) {
	r, err := s.client.Get(ctx, root, clientv3.WithKeysOnly())
	if err != nil {
		return 0, s.explain(ctx, "read the store's revision", err)
	}
	s.heard(true)
	return r.Header.Revision, nil
}

// VNet reads a record; ErrNotFound when there is none.
func (s *Store) VNet(ctx context.Context, name string) (*VNetRecord, error) {
	ctx, cancel := s.call(ctx)
	defer cancel()
	r, err := s.client.Get(ctx, vnetKey(name))
	if err != nil {
		return nil, s.explain(ctx, "read VNet "+name, err)
	}
	if len(r.Kvs) == 0 {
		return nil, unknown(fmt.Sprintf("there is no VNet %q; `trellis ls` lists those there are", name))
	}
	return readRecord(r.Kvs[0].Value, r.Kvs[0].ModRevision, name)
}

// VNets reads all records, sorted by name.
func (s *Store) VNets(ctx context.Context) ([]*VNetRecord, error) {
	ctx, cancel := s.call(ctx)
	defer cancel()
	r, err := s.client.Get(ctx, vnetPrefix, clientv3.WithPrefix())
	if err != nil {
		return nil, s.explain(ctx, "list VNets", err)
	}
	records := make([]*VNetRecord, 0, len(r.Kvs))
	for _, kv := range r.Kvs {
		rec, err := readRecord(kv.Value, kv.ModRevision, string(kv.Key[len(vnetPrefix):]))
		if err != nil {
			return nil, err
		}
		records = append(records, rec)
	}
	return records, nil
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
	ctx, cancel := s.call(ctx)
	defer cancel()
	r, err := s.client.Get(ctx, planKey(host, name))
	if err != nil {
		return nil, s.explain(ctx, "read the plan of "+name, err)
	}
	if len(r.Kvs) == 0 {
		return nil, fmt.Errorf("plan of %s for %s: %w", name, host, ErrNotFound)
	}
	p := &plan.Plan{}
	if err := decode(r.Kvs[0].Value, p); err != nil {
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
		return nil, s.explain(ctx, "list id ranges", err)
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

// Put writes a record and its plans, by substrate node, in one transaction. A
// record that was read is replaced if it is still as it was read; one that was
// not read must be new. Otherwise, and when the record's id range is another
// VNet's, nothing is written and the error is ErrConflict.
//
// The record's Hosts are completed by those of the plans. A nil plan takes the
// host's plan and status out of the store, and the host off the record's Hosts.
func (s *Store) Put(ctx context.Context, rec *VNetRecord, plans map[string]*plan.Plan) error {
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
	value, err := encode(rec)
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	size := len(value)
	need := clientv3.Compare(clientv3.ModRevision(vnetKey(name)), "=", rec.revision)
	ops := []clientv3.Op{clientv3.OpPut(vnetKey(name), string(value))}
	empty := true
	for host, p := range plans {
		if p == nil {
			ops = append(ops, clientv3.OpDelete(planKey(host, name)), clientv3.OpDelete(statusKey(name, host)))
			continue
		}
		empty = empty && p.Empty()
		value, err := encode(p)
		if err != nil {
			return fmt.Errorf("%s: %w", doing, err)
		}
		size += len(value)
		ops = append(ops, clientv3.OpPut(planKey(host, name), string(value)))
	}
	if !s.remote() && size > maxRequest/2 {
		return fmt.Errorf("%s: its plan has %d MiB compressed, at most %d MiB can be stored; split the network", doing, size>>20, maxRequest/2>>20)
	}
	room := uint64(roomToRemove)
	if !empty {
		room = roomToWrite + 2*uint64(size)
		if err := s.roomElsewhere(ctx); err != nil {
			return fmt.Errorf("%s: %w", doing, err)
		}
	}
	if err := s.room(room); err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	needs := []clientv3.Cmp{need}
	if rec.IDBase != 0 {
		if rec.revision == 0 {
			needs = append(needs, clientv3.Compare(clientv3.CreateRevision(idsKey(rec.IDBase)), "=", 0))
			ops = append(ops, clientv3.OpPut(idsKey(rec.IDBase), name))
		} else {
			needs = append(needs, clientv3.Compare(clientv3.Value(idsKey(rec.IDBase)), "=", name))
		}
	}
	revision, err := s.commit(ctx, doing, size, needs, ops)
	if err != nil {
		return err
	}
	rec.revision = revision
	return nil
}

// Forget removes all that the store has of a VNet, if the record is still as it
// was read, and ErrConflict otherwise.
func (s *Store) Forget(ctx context.Context, rec *VNetRecord) error {
	name := rec.Name()
	doing := "forget VNet " + name
	if err := s.room(roomToRemove); err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	ops := []clientv3.Op{
		clientv3.OpDelete(vnetKey(name)),
		clientv3.OpDelete(statusKeys(name), clientv3.WithPrefix()),
	}
	if rec.IDBase != 0 {
		ops = append(ops, clientv3.OpDelete(idsKey(rec.IDBase)))
	}
	for _, host := range rec.Hosts {
		ops = append(ops, clientv3.OpDelete(planKey(host, name)))
	}
	_, err := s.commit(ctx, doing, 0,
		[]clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(vnetKey(name)), "=", rec.revision)}, ops)
	return err
}

// commit runs a transaction and gives its revision.
func (s *Store) commit(ctx context.Context, doing string, size int, needs []clientv3.Cmp, ops []clientv3.Op) (int64, error) {
	ctx, cancel := s.callFor(ctx, size)
	defer cancel()
	r, err := s.client.Txn(ctx).If(needs...).Then(ops...).Commit()
	if err != nil {
		return 0, s.explain(ctx, doing, err)
	}
	s.heard(true)
	if !r.Succeeded {
		return 0, fmt.Errorf("%s: %w", doing, ErrConflict)
	}
	s.wrote(size)
	return r.Header.Revision, nil
}

// PutStatus writes what the agent of host says about a VNet. ErrNotFound means
// that there is no plan to report on any more, and is no failure to the agent.
func (s *Store) PutStatus(ctx context.Context, host, name string, st *Status) error {
	doing := "report on VNet " + name
	value, err := encode(st)
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	if err := s.room(roomToRemove + 2*uint64(len(value))); err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	_, err = s.commit(ctx, doing, len(value),
		[]clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(planKey(host, name)), ">", 0)},
		[]clientv3.Op{clientv3.OpPut(statusKey(name, host), string(value))})
	if errors.Is(err, ErrConflict) {
		return fmt.Errorf("%s: plan for %s: %w", doing, host, ErrNotFound)
	}
	return err
}

// Statuses reads what the agents say about a VNet, by substrate node.
func (s *Store) Statuses(ctx context.Context, name string) (map[string]*Status, error) {
	ctx, cancel := s.call(ctx)
	defer cancel()
	r, err := s.client.Get(ctx, statusKeys(name), clientv3.WithPrefix())
	if err != nil {
		return nil, s.explain(ctx, "read the status of VNet "+name, err)
	}
	statuses := make(map[string]*Status, len(r.Kvs))
	for _, kv := range r.Kvs {
		_, host := splitStatusKey(string(kv.Key))
		st := &Status{}
		if err := decode(kv.Value, st); err != nil {
			return nil, fmt.Errorf("read the status of VNet %s: %w", name, err)
		}
		statuses[host] = st
	}
	return statuses, nil
}
