package store

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Protocol is what the services that share a store must agree on: the keys,
// what the values mean, and the calls between agents. It grows with every
// change that an older service would misread.
const Protocol = 1

// claimProtocol fails when the store is used in another protocol than ours.
// Nobody but a newer service raises it, and only while no older one lives.
func (s *Store) claimProtocol(ctx context.Context) error {
	for {
		bounded, cancel := s.call(ctx)
		r, err := s.client.Get(bounded, protocolKey)
		if err != nil {
			err = s.explain(bounded, "read the store's protocol", err)
		}
		cancel()
		if err != nil {
			return err
		}
		have, revision := 0, int64(0)
		if len(r.Kvs) > 0 {
			revision = r.Kvs[0].ModRevision
			if have, err = strconv.Atoi(string(r.Kvs[0].Value)); err != nil {
				return fmt.Errorf("%s says %q for its protocol; it is not one of Trellis", s.where, r.Kvs[0].Value)
			}
		}
		if have > Protocol {
			return fmt.Errorf("%s is used by a newer trellis (protocol %d, this one speaks %d); run the newer version", s.where, have, Protocol)
		}
		parts, err := s.hosts(ctx)
		if err != nil {
			return err
		}
		if err := agree("", parts); err != nil {
			return err
		}
		if have == Protocol {
			return nil
		}
		_, err = s.commit(ctx, "mark the store's protocol", 0,
			[]clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(protocolKey), "=", revision)},
			[]clientv3.Op{clientv3.OpPut(protocolKey, strconv.Itoa(Protocol))})
		if !errors.Is(err, ErrConflict) {
			return err
		}
	}
}

// agree fails unless all live agents but the named one speak our protocol.
func agree(name string, parts map[string]*hostParts) error {
	var others []string
	for n, p := range parts {
		if n == name || p.alive == nil {
			continue
		}
		if protocol, version := p.speaks(); protocol != 0 && protocol != Protocol {
			others = append(others, fmt.Sprintf("%s (trellis %s, protocol %d)", n, version, protocol))
		}
	}
	if len(others) == 0 {
		return nil
	}
	slices.Sort(others)
	return fmt.Errorf("this trellis speaks protocol %d, and live agents speak another: %s; run the same version everywhere, what runs goes on while agents are stopped",
		Protocol, strings.Join(others, ", "))
}

// Identity tells this store from any other, such as an empty one in its place.
// It is made once and never changes.
func (s *Store) Identity(ctx context.Context) (string, error) {
	for {
		bounded, cancel := s.call(ctx)
		r, err := s.client.Get(bounded, identityKey)
		if err != nil {
			err = s.explain(bounded, "read the store's identity", err)
		}
		cancel()
		if err != nil {
			return "", err
		}
		if len(r.Kvs) > 0 {
			return string(r.Kvs[0].Value), nil
		}
		_, err = s.commit(ctx, "make the store's identity", 0,
			[]clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(identityKey), "=", 0)},
			[]clientv3.Op{clientv3.OpPut(identityKey, rand.Text())})
		if err != nil && !errors.Is(err, ErrConflict) {
			return "", err
		}
	}
}
