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
// change that an older service would misread. What was written in earlier protocols
// is read, and brought up to date when the first service of a later one opens the
// store; there is no way back but a copy (`trellis store save`).
//
//	3  EGRE keys in an order by a secret
//	2  large values in chunks, values compressed by zstd, a summary of each VNet
//	1  values compressed by deflate
const Protocol = 3

// checkProtocol fails when the store is used in another protocol than ours.
// Nobody but a newer service raises it, and only while no older one lives.
func (s *Store) checkProtocol(ctx context.Context) error {
	for {
		bounded, cancel := s.call(ctx)
		r, err := s.client.Get(bounded, protocolKey)
		if isLeaderChanged(err) && !s.remote() && ctx.Err() == nil {
			cancel() // the one member has just elected itself
			continue
		}
		if err != nil {
			err = s.describeError(bounded, "read the store's protocol", err)
		}
		cancel()
		if err != nil {
			return err
		}
		have, revision := 0, int64(0)
		if len(r.Kvs) > 0 {
			revision = r.Kvs[0].ModRevision
			if string(r.Kvs[0].Value) == restoring && s.restoring {
				return nil
			} else if string(r.Kvs[0].Value) == restoring {
				return fmt.Errorf("%s is being restored, or a restore of it was cut off; `trellis store restore --force FILE` does it again", s.where)
			}
			if have, err = strconv.Atoi(string(r.Kvs[0].Value)); err != nil {
				return fmt.Errorf("%s says %q for its protocol; it is not one of Trellis", s.where, r.Kvs[0].Value)
			}
		}
		if have > Protocol {
			return fmt.Errorf("%s was written by a newer trellis (protocol %d, this one speaks %d); run the newer version, or restore a copy from before the upgrade by `trellis store restore`", s.where, have, Protocol)
		}
		entries, err := s.hosts(ctx)
		if err != nil {
			return err
		}
		if err := checkLiveProtocols("", entries); err != nil {
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

// checkLiveProtocols fails unless all live agents but the named one speak our protocol.
func checkLiveProtocols(name string, entries map[string]*hostEntry) error {
	var others []string
	for n, p := range entries {
		if n == name || p.alive == nil {
			continue
		}
		if protocol, version := p.spokenProtocol(); protocol != 0 && protocol != Protocol {
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

// Identity distinguishes this store from any other, such as an empty one in its place.
// It is made once and never changes.
func (s *Store) Identity(ctx context.Context) (string, error) {
	for {
		bounded, cancel := s.call(ctx)
		r, err := s.client.Get(bounded, identityKey)
		if err != nil {
			err = s.describeError(bounded, "read the store's identity", err)
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
