package store

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// What a restored store skips, since it may have been given out after the copy was
// taken: EGRE keys, and revisions, which generations of new networks start from.
const (
	skipKeys      = 1 << 24
	skipRevisions = 1 << 32
)

// restoring stands in the place of the protocol while a store is being restored, so
// that no service uses it.
const restoring = "being restored"

// epoch counts the restores in a store's past.
type epoch struct {
	Restores int `json:"restores"`
	// Floor is added to the store's revision for generations, so that they grow: the
	// revisions of a restored store start anew.
	Floor int64 `json:"floor"`
}

// Restore makes the store of o from a copy: an embedded one in a directory that is not
// there or empty, or that of others where it holds nothing of Trellis. With force,
// what is there is replaced; an embedded one's directory is kept beside, under the name
// that is returned. Nobody may use the store meanwhile, which is checked.
func Restore(ctx context.Context, o Options, c *Copy, force bool) (kept string, err error) {
	if faults := c.Check(); len(faults) > 0 && !force {
		return "", fmt.Errorf("the copy is not sound (%s); `trellis store check FILE` names all, --force restores it all the same", faults[0])
	}
	o.restoring = true
	if len(o.Endpoints) > 0 {
		return "", restoreElsewhere(ctx, o, c, force)
	}
	o.Listen = ""
	there, err := Exists(o.Dir)
	if err != nil {
		return "", err
	}
	if there {
		if !force {
			return "", fmt.Errorf("there is a store in %s; --force puts the copy in its place, and keeps it beside", o.Dir)
		}
		lock, err := claim(o.Dir) // fails while somebody uses it
		if err != nil {
			return "", err
		}
		defer lock.Close()
		kept = o.Dir + ".replaced-" + time.Now().UTC().Format("20060102T150405")
	} else if err := os.Remove(o.Dir); err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("%s is no store and not empty; move it away", o.Dir)
	}
	// It is made beside, and put in place at once.
	made := o
	made.Dir = filepath.Clean(o.Dir) + ".restoring"
	if err := os.RemoveAll(made.Dir); err != nil {
		return "", fmt.Errorf("restore the store: %w", err)
	}
	s, err := Open(ctx, made)
	if err != nil {
		return "", err
	}
	err = s.restore(ctx, c)
	if err := errors.Join(err, s.Close()); err != nil {
		return "", errors.Join(err, os.RemoveAll(made.Dir))
	}
	if kept != "" {
		if err := os.Rename(o.Dir, kept); err != nil {
			return "", fmt.Errorf("put the old store aside: %w", err)
		}
	}
	if err := os.Rename(made.Dir, o.Dir); err != nil {
		return kept, fmt.Errorf("put the restored store in place: %w", err)
	}
	return kept, nil
}

// restoreElsewhere restores a store of others.
func restoreElsewhere(ctx context.Context, o Options, c *Copy, force bool) error {
	s, err := Open(ctx, o)
	if err != nil {
		return err
	}
	defer s.Close()
	parts, err := s.hosts(ctx)
	if err != nil {
		return err
	}
	for name, h := range parts {
		if h.alive != nil {
			return fmt.Errorf("the service of %s uses %s; stop the services of all hosts first", name, s.where)
		}
	}
	names, err := s.Names(ctx)
	if err != nil {
		return err
	}
	if len(names) > 0 && !force {
		return fmt.Errorf("there are networks in %s (%s); --force puts the copy in the place of all that is there", s.where, strings.Join(names, ", "))
	}
	return s.restore(ctx, c)
}

// restore puts a copy in the place of all that is there.
func (s *Store) restore(ctx context.Context, c *Copy) error {
	const doing = "restore the store"
	own, err := s.revision(ctx)
	if err != nil {
		return err
	}
	if err := s.reissue(c, own); err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	_, err = s.commit(ctx, doing, 0, nil, []clientv3.Op{clientv3.OpDelete(root, clientv3.WithPrefix())})
	if err != nil {
		return err
	}
	if _, err := s.commit(ctx, doing, 0, nil, []clientv3.Op{clientv3.OpPut(protocolKey, restoring)}); err != nil {
		return err
	}
	var ops []clientv3.Op
	size := 0
	flush := func() error {
		if len(ops) == 0 {
			return nil
		}
		if err := s.checkSpace(spaceToWrite + 2*uint64(size)); err != nil {
			return fmt.Errorf("%s: %w", doing, err)
		}
		_, err := s.commit(ctx, doing, size, nil, ops)
		ops, size = nil, 0
		return err
	}
	for _, key := range c.keys() {
		value := c.values[key]
		if len(ops) == maxOps || size+len(value) > chunkSize {
			if err := flush(); err != nil {
				return err
			}
		}
		ops = append(ops, clientv3.OpPut(key, string(value)))
		size += len(value)
	}
	if err := flush(); err != nil {
		return err
	}
	// The copy's own protocol: the next start brings it up to date.
	_, err = s.commit(ctx, doing, 0, nil, []clientv3.Op{clientv3.OpPut(protocolKey, strconv.Itoa(c.Protocol))})
	return err
}

// reissue sees to it that nothing is given out twice: EGRE keys, generations, and
// user ids (by [Store.Restores]) go on behind what may have been given out since the
// copy was taken. And the store is another one from now on, for its hosts may hold
// what it does not know.
func (s *Store) reissue(c *Copy, own int64) error {
	var e epoch
	if value := c.values[epochKey]; value != nil {
		if err := decode(value, &e); err != nil {
			return err
		}
	}
	e.Restores++
	e.Floor += max(c.Revision, own) + skipRevisions
	var keys keyCounter
	if value := c.values[nextKeyKey]; value != nil {
		if err := decode(value, &keys); err != nil {
			return err
		}
		keys.skip(skipKeys)
	}
	set := func(key string, v any) error {
		value, err := encode(v)
		c.values[key] = value
		return err
	}
	err := set(epochKey, e)
	if c.values[nextKeyKey] != nil {
		err = errors.Join(err, set(nextKeyKey, keys))
	}
	before, _, _ := strings.Cut(c.Identity, restoredMark)
	c.values[identityKey] = []byte(before + restoredMark + rand.Text())
	return err
}

// restoredMark stands in the identity of a restored store, behind that of the store
// that the copy is of, and before what distinguishes the restored ones.
const restoredMark = "/"

// RestoredFrom reports whether a store has been restored from a copy of another one,
// or of what that was restored from, by their identities.
func RestoredFrom(identity, other string) bool {
	a, _, restored := strings.Cut(identity, restoredMark)
	b, _, _ := strings.Cut(other, restoredMark)
	return restored && a == b && identity != other
}

// skip leaves out so many keys, fewer than all.
func (c *keyCounter) skip(n uint32) {
	left := c.Start - c.Next // until the round is full; 0: none is drawn yet, or it is
	c.Round = c.Round || left != 0 && n >= left
	c.Next += n
}

// epoch reads how often the store was restored, and where generations go on.
func (s *Store) epoch(ctx context.Context) (epoch, error) {
	var e epoch
	kv, err := s.get(ctx, "read the store's past", epochKey)
	if err != nil || kv == nil {
		return e, err
	}
	if err := decode(kv.Value, &e); err != nil {
		return e, fmt.Errorf("read the store's past: %w", err)
	}
	return e, nil
}

// Restores is how often the store, or what it was restored from, was restored from a
// copy. What is given out in order must start elsewhere then: some was given out
// after the copy was taken.
func (s *Store) Restores(ctx context.Context) (int, error) {
	e, err := s.epoch(ctx)
	return e.Restores, err
}
