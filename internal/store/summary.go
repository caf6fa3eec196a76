package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Summary is what lists and admission need to know of a VNet, without its
// description. It is written with the record.
type Summary struct {
	Name       string    `json:"name"`
	State      State     `json:"state"`
	Generation int64     `json:"generation"`
	Created    time.Time `json:"created"`
	Routing    string    `json:"routing,omitempty"` // protocol
	Nodes      int       `json:"nodes"`
	Links      int       `json:"links"`
	Hosts      []string  `json:"hosts"` // see VNetRecord
	// Shares are what of the VNet is placed on each substrate node.
	Shares map[string]Share `json:"shares,omitempty"`
}

// Share is what of a VNet is placed on one substrate node.
type Share struct {
	Nodes  int     `json:"nodes"`
	Memory int64   `json:"memory"` // bytes
	CPU    float64 `json:"cpu"`    // cores
}

// Holders are the substrate nodes that nodes of the VNet are placed on, sorted.
func (s *Summary) Holders() []string {
	var holders []string
	for host := range s.Shares {
		holders = append(holders, host)
	}
	slices.Sort(holders)
	return holders
}

// Summary sums a record up.
func (r *VNetRecord) Summary() Summary {
	out := Summary{
		Name: r.Name(), State: r.State, Generation: r.Generation, Created: r.Created,
		Routing: string(r.Spec.Routing.Protocol), Nodes: len(r.Spec.Nodes), Links: len(r.Spec.Links),
		Hosts: r.Hosts, Shares: map[string]Share{},
	}
	for i := range r.Spec.Nodes {
		n := &r.Spec.Nodes[i]
		host, placed := r.Placement[n.Name]
		if !placed && r.Placement == nil && len(r.Hosts) == 1 {
			host = r.Hosts[0] // a record of before there were several substrate nodes
		}
		if host == "" {
			continue
		}
		share := out.Shares[host]
		share.Nodes++
		share.Memory += n.Memory
		share.CPU += n.CPU
		out.Shares[host] = share
	}
	return out
}

// Summaries reads what there is of all VNets in short, sorted by name.
func (s *Store) Summaries(ctx context.Context) ([]Summary, error) {
	ctx, cancel := s.call(ctx)
	defer cancel()
	r, err := s.client.Get(ctx, summaryPrefix, clientv3.WithPrefix())
	if err != nil {
		return nil, s.describeError(ctx, "list VNets", err)
	}
	s.noteAnswer(true)
	all := make([]Summary, len(r.Kvs))
	for i, kv := range r.Kvs {
		if err := decode(kv.Value, &all[i]); err != nil {
			return nil, fmt.Errorf("read the summary of VNet %s: %w", kv.Key[len(summaryPrefix):], err)
		}
	}
	return all, nil
}

// addSummaries writes those that are missing, because the records were written in an
// earlier protocol.
func (s *Store) addSummaries(ctx context.Context) error {
	names, err := s.Names(ctx)
	if err != nil {
		return err
	}
	bounded, cancel := s.call(ctx)
	defer cancel()
	r, err := s.client.Get(bounded, summaryPrefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		return s.describeError(bounded, "list VNets", err)
	}
	have := map[string]bool{}
	for _, kv := range r.Kvs {
		have[string(kv.Key[len(summaryPrefix):])] = true
	}
	for _, name := range names {
		if have[name] {
			continue
		}
		rec, err := s.VNet(ctx, name)
		if errors.Is(err, ErrNotFound) {
			continue
		} else if err != nil {
			return err
		}
		value, err := encode(rec.Summary())
		if err != nil {
			return err
		}
		_, err = s.commit(ctx, "sum VNet "+name+" up", len(value),
			[]clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(vnetKey(name)), "=", rec.revision)},
			[]clientv3.Op{clientv3.OpPut(summaryKey(name), string(value))})
		if err != nil && !errors.Is(err, ErrConflict) { // somebody has written both
			return err
		}
	}
	return nil
}
