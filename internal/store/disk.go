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
	spaceToStart  = 4 * segment // two segments, the tree, a snapshot
	spaceToWrite  = 2*segment + 8<<20
	spaceToRemove = 1 << 20 // removing is how room is made
	spaceToGrow   = segment // taken ahead for the tree
	ballastSize   = 2*segment + 8<<20
	// maxInterrupts bounds how often that is tried while signals interrupt it.
	maxInterrupts = 100
	// compactAfter is how many bytes are written between two compactions.
	compactAfter = 32 << 20
	// monitorInterval is how often a store that others write to is looked at.
	monitorInterval = 10 * time.Second
)

// checkSpace fails with ErrNoSpace unless so many bytes are free for the store. Of
// the disks of others see roomElsewhere.
func (s *Store) checkSpace(bytes uint64) error {
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

// checkRemovalSpace is checkSpace for what makes room in the end: where that much is
// not free, the ballast goes overboard.
func (s *Store) checkRemovalSpace(bytes uint64) error {
	err := s.checkSpace(bytes)
	if err == nil || s.remote() {
		return err
	}
	if e := os.Remove(s.ballast()); e != nil {
		return err // it has gone already
	}
	s.log.Warn("the disk of the store is full; what was kept back for removals is used up now, make room", "dir", s.dir)
	return s.checkSpace(bytes)
}

// ballast is a file that keeps room on the disk for removals: with nothing free at all,
// nothing could be taken down, and so no room be made.
func (s *Store) ballast() string { return filepath.Join(s.dir, "ballast") }

// takeBallast makes the ballast, if it is not there and there is ample room.
func (s *Store) takeBallast() error {
	if _, err := os.Stat(s.ballast()); err == nil || s.checkSpace(ballastSize+spaceToWrite) != nil {
		return nil
	}
	f, err := os.OpenFile(s.ballast(), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("keep disk back for removals: %w", err)
	}
	defer f.Close()
	err = retryInterrupted(func() error { return unix.Fallocate(int(f.Fd()), 0, 0, ballastSize) })
	if err != nil {
		return errors.Join(fmt.Errorf("keep disk back for removals: %w", err), os.Remove(s.ballast()))
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
	err = retryInterrupted(func() error {
		return unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, info.Size()+spaceToGrow)
	})
	if err != nil {
		return fmt.Errorf("reserve %d MiB of disk for the store in %s: %w", (info.Size()+spaceToGrow)>>20, s.dir, err)
	}
	return nil
}

// retryInterrupted reserves disk in spite of signals, which end that on a tmpfs of
// older kernels. What cannot be reserved for another reason than a full disk, or an
// error of it, is none the worse for it.
func retryInterrupted(reserve func() error) error {
	for range maxInterrupts {
		if err := reserve(); !errors.Is(err, unix.EINTR) {
			if errors.Is(err, unix.EOPNOTSUPP) {
				return nil
			}
			return err
		}
	}
	return nil
}

// countWritten counts bytes written, and wakes the compactor when they are many.
func (s *Store) countWritten(bytes int) {
	// A transaction without a value still costs a revision of each key.
	if s.written.Add(int64(bytes)+4096) < compactAfter {
		return
	}
	select {
	case s.compact <- struct{}{}:
	default:
	}
}

// monitorDisk looks after a store that other hosts write to: they see neither its
// disk nor its growth.
func (s *Store) monitorDisk() {
	tick := time.NewTicker(monitorInterval)
	defer tick.Stop()
	size := s.server.Server.Backend().Size()
	full, reported := false, false // at first the store may say what was true when it was closed
	for {
		now := s.server.Server.Backend().Size()
		if now > size {
			s.countWritten(int(now - size))
		}
		size = now
		if is := s.checkSpace(spaceToWrite) != nil; (is != full || !reported) && s.publishFull(is) {
			full, reported = is, true
		}
		select {
		case <-s.life.Done():
			return
		case <-tick.C:
		}
	}
}

// publishFull tells the other hosts whether the disk is full.
func (s *Store) publishFull(full bool) bool {
	op := clientv3.OpDelete(fullKey)
	if full {
		op = clientv3.OpPut(fullKey, s.where)
	}
	_, err := s.commit(s.life, "publish that the disk is full", 0, nil, []clientv3.Op{op})
	if err != nil && s.life.Err() == nil {
		s.log.Warn("other hosts do not hear of a full disk", "error", err)
	}
	return err == nil
}

// checkRemoteSpace is checkSpace for a store elsewhere: its holder publishes whether it is full.
func (s *Store) checkRemoteSpace(ctx context.Context) error {
	if !s.remote() {
		return nil
	}
	ctx, cancel := s.call(ctx)
	defer cancel()
	r, err := s.client.Get(ctx, fullKey, clientv3.WithKeysOnly())
	if err != nil {
		return s.describeError(ctx, "look at the disk of the store", err)
	}
	if len(r.Kvs) > 0 {
		return fmt.Errorf("the disk of %s is full; make room on that host and try again: %w", s.where, ErrNoSpace)
	}
	return nil
}

// CheckRoom fails with ErrNoSpace, and a sentence on which disk to make room on, where
// the store is full: what agents report may then not get into it.
func (s *Store) CheckRoom(ctx context.Context) error {
	if s.remote() {
		return s.checkRemoteSpace(ctx)
	}
	return s.checkSpace(spaceToRemove)
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
		if err := s.compactHistory(s.life); err != nil && s.life.Err() == nil {
			s.log.Warn("the store keeps old revisions", "error", err)
		}
		if err := errors.Join(s.reserve(), s.takeBallast()); err != nil && s.life.Err() == nil {
			s.log.Warn("a full disk would end the store", "error", err)
		}
	}
}

// compactHistory compacts the store up to its newest revision.
func (s *Store) compactHistory(ctx context.Context) error {
	rev, err := s.revision(ctx)
	if err != nil {
		return err
	}
	_, err = s.client.Compact(ctx, rev, clientv3.WithCompactPhysical())
	if err != nil && !errors.Is(err, rpctypes.ErrCompacted) {
		return s.describeError(ctx, "compact the store", err)
	}
	return nil
}

// clearAlarms lifts a quota alarm of an earlier life, after making room for it.
func (s *Store) clearAlarms(ctx context.Context) error {
	ctx, cancel := s.call(ctx)
	defer cancel()
	alarms, err := s.client.AlarmList(ctx)
	if err != nil {
		return s.describeError(ctx, "read alarms", err)
	}
	for _, a := range alarms.Alarms {
		if a.Alarm != etcdserverpb.AlarmType_NOSPACE {
			return fmt.Errorf("etcd reports %v: the store is damaged; move the directory away and start again", a.Alarm)
		}
		if err := s.compactHistory(ctx); err != nil {
			return err
		}
		if _, err := s.client.Defragment(ctx, ""); err != nil {
			return s.describeError(ctx, "defragment the store", err)
		}
		if _, err := s.client.AlarmDisarm(ctx, (*clientv3.AlarmMember)(a)); err != nil {
			return s.describeError(ctx, "lift the quota alarm", err)
		}
	}
	return nil
}
