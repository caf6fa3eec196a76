package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// What must be free on the disk, in bytes. Log segments are allocated ahead, so
// an operation finds its room there; the margins cover the next segment and the
// growth of the tree.
const (
	roomToStart  = 4 * segment // two segments, the tree, a snapshot
	roomToWrite  = 2*segment + 8<<20
	roomToRemove = 1 << 20 // removing is how room is made
	roomToGrow   = segment // taken ahead for the tree
	// reserveTries bounds how often that is tried while signals interrupt it.
	reserveTries = 100
	// compactAfter is how many bytes are written between two compactions.
	compactAfter = 32 << 20
	// measureEvery is how often a store that others write to is looked at.
	measureEvery = 10 * time.Second
)

// room fails with ErrNoSpace unless so many bytes are free for the store. Of
// the disks of others see roomElsewhere.
func (s *Store) room(bytes uint64) error {
	if s.remote() {
		return nil
	}
	var fs syscall.Statfs_t
	if err := syscall.Statfs(s.dir, &fs); err != nil {
		return fmt.Errorf("look at the disk of %s: %w", s.dir, err)
	}
	free := fs.Bavail * uint64(fs.Bsize)
	if free < bytes {
		return fmt.Errorf("the disk that holds %s is full (%d MiB free, %d MiB needed); make room and try again: %w",
			s.dir, free>>20, (bytes+1<<20-1)>>20, ErrNoSpace)
	}
	return nil
}

func isNoSpace(err error) bool {
	return errors.Is(err, rpctypes.ErrNoSpace) || errors.Is(err, rpctypes.ErrGRPCNoSpace) || errors.Is(err, syscall.ENOSPC)
}

// reserve takes disk for the tree's growth, as etcd does for its log: what others
// fill the disk with must not end a store that has work under way. File systems
// that cannot reserve are none the worse for it.
func (s *Store) reserve() error {
	path := filepath.Join(s.dir, memberDir, "snap", "db")
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("reserve disk for the store: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("reserve disk for the store: %w", err)
	}
	err = persevere(func() error {
		return unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, info.Size()+roomToGrow)
	})
	if err != nil {
		return fmt.Errorf("reserve %d MiB of disk for the store in %s: %w", (info.Size()+roomToGrow)>>20, s.dir, err)
	}
	return nil
}

// persevere reserves disk in spite of signals, which end that on a tmpfs of
// older kernels. What cannot be reserved for another reason than a full disk, or an
// error of it, is none the worse for it.
func persevere(reserve func() error) error {
	for range reserveTries {
		if err := reserve(); !errors.Is(err, unix.EINTR) {
			if errors.Is(err, unix.EOPNOTSUPP) {
				return nil
			}
			return err
		}
	}
	return nil
}

// wrote counts bytes written, and wakes the compactor when they are many.
func (s *Store) wrote(bytes int) {
	// A transaction without a value still costs a revision of each key.
	if s.written.Add(int64(bytes)+4096) < compactAfter {
		return
	}
	select {
	case s.compact <- struct{}{}:
	default:
	}
}

// measure looks after a store that other hosts write to: they see neither its
// disk nor its growth.
func (s *Store) measure() {
	tick := time.NewTicker(measureEvery)
	defer tick.Stop()
	size := s.server.Server.Backend().Size()
	full, told := false, false // at first the store may say what was true when it was closed
	for {
		now := s.server.Server.Backend().Size()
		if now > size {
			s.wrote(int(now - size))
		}
		size = now
		if is := s.room(roomToWrite) != nil; (is != full || !told) && s.tellFull(is) {
			full, told = is, true
		}
		select {
		case <-s.life.Done():
			return
		case <-tick.C:
		}
	}
}

// tellFull tells the other hosts whether the disk is full.
func (s *Store) tellFull(full bool) bool {
	op := clientv3.OpDelete(fullKey)
	if full {
		op = clientv3.OpPut(fullKey, s.where)
	}
	_, err := s.commit(s.life, "tell that the disk is full", 0, nil, []clientv3.Op{op})
	if err != nil && s.life.Err() == nil {
		s.log.Warn("other hosts do not hear of a full disk", "error", err)
	}
	return err == nil
}

// roomElsewhere is room for a store elsewhere: whoever holds it tells.
func (s *Store) roomElsewhere(ctx context.Context) error {
	if !s.remote() {
		return nil
	}
	ctx, cancel := s.call(ctx)
	defer cancel()
	r, err := s.client.Get(ctx, fullKey, clientv3.WithKeysOnly())
	if err != nil {
		return s.explain(ctx, "look at the disk of the store", err)
	}
	if len(r.Kvs) > 0 {
		return fmt.Errorf("the disk of %s is full; make room on that host and try again: %w", s.where, ErrNoSpace)
	}
	return nil
}

// compactor forgets old revisions, so that the store does not grow.
func (s *Store) compactor() {
	for {
		select {
		case <-s.life.Done():
			return
		case <-s.compact:
		}
		s.written.Store(0)
		if err := s.forgetHistory(s.life); err != nil && s.life.Err() == nil {
			s.log.Warn("the store keeps old revisions", "error", err)
		}
		if err := s.reserve(); err != nil && s.life.Err() == nil {
			s.log.Warn("a full disk would end the store", "error", err)
		}
	}
}

// forgetHistory compacts the store up to its newest revision.
func (s *Store) forgetHistory(ctx context.Context) error {
	rev, err := s.revision(ctx)
	if err != nil {
		return err
	}
	_, err = s.client.Compact(ctx, rev, clientv3.WithCompactPhysical())
	if err != nil && !errors.Is(err, rpctypes.ErrCompacted) {
		return s.explain(ctx, "compact the store", err)
	}
	return nil
}

// reclaim lifts a quota alarm of an earlier life, after making room for it.
func (s *Store) reclaim(ctx context.Context) error {
	ctx, cancel := s.call(ctx)
	defer cancel()
	alarms, err := s.client.AlarmList(ctx)
	if err != nil {
		return s.explain(ctx, "read alarms", err)
	}
	for _, a := range alarms.Alarms {
		if a.Alarm != etcdserverpb.AlarmType_NOSPACE {
			return fmt.Errorf("etcd reports %v: the store is damaged; move the directory away and start again", a.Alarm)
		}
		if err := s.forgetHistory(ctx); err != nil {
			return err
		}
		if _, err := s.client.Defragment(ctx, ""); err != nil {
			return s.explain(ctx, "defragment the store", err)
		}
		if _, err := s.client.AlarmDisarm(ctx, (*clientv3.AlarmMember)(a)); err != nil {
			return s.explain(ctx, "lift the quota alarm", err)
		}
	}
	return nil
}
