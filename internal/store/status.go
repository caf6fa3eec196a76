package store

import (
	"context"
	"errors"
	"fmt"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// What one transaction of statuses may hold: etcd takes 128 operations and 1.5 MiB
// a request where nobody has set other limits.
const (
	maxStatusOps   = 100
	maxStatusBytes = 1 << 20
)

// PutStatus writes what the agent of host says about a VNet. ErrNotFound means
// that there is no plan to report on any more, and is no failure to the agent.
func (s *Store) PutStatus(ctx context.Context, host, name string, st *Status) error {
	lost, err := s.putStatuses(ctx, host, map[string]*Status{name: st})
	if err == nil && len(lost) > 0 {
		return fmt.Errorf("report on VNet %s: plan for %s: %w", name, host, ErrNotFound)
	}
	return err
}

// PutStatuses writes what the agent of host says about VNets, by name, in as few
// transactions as may be. VNets without a plan for the host, on which nothing is to
// be reported any more, are passed over. After an error, some are written.
func (s *Store) PutStatuses(ctx context.Context, host string, statuses map[string]*Status) error {
	_, err := s.putStatuses(ctx, host, statuses)
	return err
}

// putStatuses is PutStatuses that names the VNets without a plan.
func (s *Store) putStatuses(ctx context.Context, host string, statuses map[string]*Status) (lost []string, err error) {
	var errs []error
	var names []string
	var ops []clientv3.Op
	size, removal := 0, false
	commit := func() {
		if len(ops) == 0 {
			return
		}
		without, err := s.commitStatuses(ctx, names, ops, size, removal)
		errs = append(errs, err)
		lost = append(lost, without...)
		names, ops, size, removal = nil, nil, 0, false
	}
	for name, st := range statuses {
		value, err := encode(st)
		if err != nil {
			errs = append(errs, fmt.Errorf("report on VNet %s: %w", name, err))
			continue
		}
		if len(ops) == maxStatusOps || size+len(value) > maxStatusBytes {
			commit()
		}
		names = append(names, name)
		size += len(value)
		removal = removal || st.Phase == PhaseRemoving || st.Phase == PhaseRemoved
		ops = append(ops, clientv3.OpTxn(
			[]clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(planKey(host, name)), ">", 0)},
			[]clientv3.Op{clientv3.OpPut(statusKey(name, host), string(value))}, nil))
	}
	commit()
	return lost, errors.Join(errs...)
}

// commitStatuses writes one transaction of statuses, and names the VNets that have
// no plan.
func (s *Store) commitStatuses(ctx context.Context, names []string, ops []clientv3.Op, size int, removal bool) (lost []string, err error) {
	doing := "report on VNet " + names[0]
	if len(names) > 1 {
		doing = fmt.Sprintf("report on %d VNets", len(names))
	}
	check := s.checkSpace
	if removal {
		check = s.checkRemovalSpace
	}
	if err := check(spaceToRemove + 2*uint64(size)); err != nil {
		return nil, fmt.Errorf("%s: %w", doing, err)
	}
	r, err := s.transact(ctx, doing, size, nil, ops)
	if err != nil {
		return nil, err
	}
	for i, one := range r.Responses {
		if !one.GetResponseTxn().Succeeded {
			lost = append(lost, names[i])
		}
	}
	slices.Sort(lost)
	return lost, nil
}

// Statuses reads what the agents say about a VNet, by substrate node.
func (s *Store) Statuses(ctx context.Context, name string) (map[string]*Status, error) {
	ctx, cancel := s.call(ctx)
	defer cancel()
	r, err := s.client.Get(ctx, statusKeys(name), clientv3.WithPrefix())
	if err != nil {
		return nil, s.describeError(ctx, "read the status of VNet "+name, err)
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

// AllStatuses reads what the agents say about all VNets, by VNet and substrate node.
func (s *Store) AllStatuses(ctx context.Context) (map[string]map[string]*Status, error) {
	ctx, cancel := s.call(ctx)
	defer cancel()
	r, err := s.client.Get(ctx, statusPrefix, clientv3.WithPrefix())
	if err != nil {
		return nil, s.describeError(ctx, "read the statuses of VNets", err)
	}
	all := map[string]map[string]*Status{}
	for _, kv := range r.Kvs {
		name, host := splitStatusKey(string(kv.Key))
		st := &Status{}
		if err := decode(kv.Value, st); err != nil {
			return nil, fmt.Errorf("read the status of VNet %s: %w", name, err)
		}
		if all[name] == nil {
			all[name] = map[string]*Status{}
		}
		all[name][host] = st
	}
	return all, nil
}
