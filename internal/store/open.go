package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.etcd.io/etcd/server/v3/storage/wal"
)

const (
	formatFile  = "trellis-store" // marks the directory as ours
	formatDraft = "trellis-store.new"
	format      = "1\n"
	formatNew   = "1, being made\n" // until the first start is done
	lockFile    = "lock"
	memberDir   = "member" // etcd's own

	// startTimeout bounds the wait for etcd to be ready. A large store on a busy
	// disk takes a second.
	startTimeout = 60 * time.Second
	stopTimeout  = 5 * time.Second
)

// Sizes of the embedded server.
const (
	maxRequest = 256 << 20 // bytes of one transaction: a compressed plan has a few MiB
	maxTxnOps  = 100_000
	quota      = 4 << 30 // bytes of the tree on disk
	// segment is how much of the log is allocated on disk at once. It bounds the
	// space of a store at rest (two segments), not the size of an entry.
	segment = 16 << 20
	// Raft's log is for followers that lag; there is none, so it is cut often,
	// which bounds what of it is in memory.
	snapshotCount   = 50
	snapshotCatchUp = 5
	// A single member elects itself one to five ticks after the start, so the
	// tick bounds the start; a larger one saves idle wake-ups.
	tick = 20 * time.Millisecond
)

// Open opens the store in o.Dir, or makes a new one in a directory that is
// empty or not there; or, with o.Endpoints, connects to the store of others. It
// fails with a sentence that says what to do when another process has the
// directory open, when it holds something else, when the disk is full, when the
// store is damaged, when a certificate is of no use, when the machine's clock is
// far from the store's, and when other versions of Trellis use it. A store of
// others that does not answer is waited for until ctx ends.
func Open(ctx context.Context, o Options) (*Store, error) {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	s := &Store{log: o.Log, compact: make(chan struct{}, 1), now: time.Now, restoring: o.restoring}
	if o.now != nil {
		s.now = o.now
	}
	s.life, s.end = context.WithCancelCause(context.Background())
	open := s.embed
	if len(o.Endpoints) > 0 {
		open = s.connect
	}
	if err := open(ctx, o); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if err := s.checkProtocol(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	upkeep := []func(context.Context) error{s.addSummaries}
	if !s.remote() {
		upkeep = append(upkeep, s.sweepChunks)
	}
	for _, f := range upkeep {
		if err := f(ctx); err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	return s, nil
}

// embed runs the store in this process.
func (s *Store) embed(ctx context.Context, o Options) error {
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return fmt.Errorf("open store: %w", err)
	}
	s.dir, s.where = dir, "the store in "+dir
	if o.Listen != "" {
		if o.Listen, err = checkListen(o); err != nil {
			return err
		}
	}
	if s.lock, err = claim(dir); err != nil {
		return err
	}
	if err := s.checkSpace(spaceToStart); err != nil {
		return fmt.Errorf("open store: %w", err)
	}
	if err := s.start(ctx, o); err != nil {
		return err
	}
	if err := errors.Join(s.reserve(), s.takeBallast()); err != nil {
		return fmt.Errorf("open store: %w", err)
	}
	s.workers.Go(s.compactor)
	if o.Listen != "" {
		s.workers.Go(s.monitorDisk)
	}
	return nil
}

// Exists reports whether a directory holds a store, whatever its state.
func Exists(dir string) (bool, error) {
	_, err := os.Stat(filepath.Join(dir, formatFile))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	} else if err != nil {
		return false, fmt.Errorf("look for the store in %s: %w", dir, err)
	}
	return true, nil
}

// claim makes the directory ours alone.
func claim(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make store: %w; name another state directory, or make room", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	hasFormat := false
	for _, e := range entries {
		hasFormat = hasFormat || e.Name() == formatFile
	}
	if !hasFormat {
		for _, e := range entries {
			if e.Name() != lockFile && e.Name() != formatDraft {
				return nil, fmt.Errorf("%s is no store of Trellis: it holds %q; name another state directory", dir, e.Name())
			}
		}
	}
	lock, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock store: %w", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		lock.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("the store in %s is in use by another trellis serve; stop that one, or name another state directory", dir)
		}
		return nil, fmt.Errorf("lock store %s: %w", dir, err)
	}
	if err := checkDirectoryFormat(dir, hasFormat); err != nil {
		lock.Close()
		return nil, err
	}
	return lock, nil
}

// checkDirectoryFormat reads the directory's mark, or leaves one. What a first start that
// was cut off has left is removed: nothing was stored yet, and etcd does not
// recover from a member that was killed before its first log entries.
func checkDirectoryFormat(dir string, hasFormat bool) error {
	if !hasFormat {
		return writeFormat(dir, formatNew)
	}
	have, err := os.ReadFile(filepath.Join(dir, formatFile))
	if err != nil {
		return fmt.Errorf("open store: %w", err)
	}
	switch string(have) {
	case format:
		return nil
	case formatNew:
		if err := os.RemoveAll(filepath.Join(dir, memberDir)); err != nil {
			return fmt.Errorf("make store: %w", err)
		}
		return nil
	}
	return fmt.Errorf("the store in %s has format %q, this trellis reads %q; use the version that wrote it, or name another state directory",
		dir, strings.TrimSpace(string(have)), strings.TrimSpace(format))
}

// writeFormat writes the directory's mark, as a whole or not at all.
func writeFormat(dir, text string) error {
	path := filepath.Join(dir, formatFile)
	f, err := os.OpenFile(filepath.Join(dir, formatDraft), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("mark the store: %w", err)
	}
	_, err = f.WriteString(text)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("mark the store: %w", err)
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return fmt.Errorf("mark the store: %w", err)
	}
	return nil
}

// The size is a variable of etcd's for the whole process, so it is set before
// any store is opened.
func init() { wal.SegmentSizeBytes = segment }

// start runs etcd and waits until it answers.
func (s *Store) start(ctx context.Context, o Options) error {
	cfg := embed.NewConfig()
	cfg.Name = "trellis"
	cfg.Dir = s.dir
	// No listeners, but for other hosts: this process reaches the server by
	// function calls.
	cfg.ListenPeerUrls, cfg.ListenClientUrls, cfg.ListenClientHttpUrls = nil, nil, nil
	cfg.AdvertiseClientUrls = nil
	if o.Listen != "" {
		listenFor(cfg, o)
	}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.InitialClusterToken = "trellis"
	cfg.PreVote = false
	cfg.TickMs = uint(tick / time.Millisecond)
	cfg.ElectionMs = 5 * cfg.TickMs
	cfg.SnapshotCount = snapshotCount
	cfg.SnapshotCatchUpEntries = snapshotCatchUp
	cfg.MaxSnapFiles = 2
	cfg.MaxWalFiles = 2
	cfg.MaxRequestBytes = maxRequest
	cfg.MaxTxnOps = maxTxnOps
	cfg.QuotaBackendBytes = quota
	cfg.AutoCompactionRetention = "0" // see compactor
	cfg.EnableGRPCGateway = false
	cfg.WarningApplyDuration = 5 * time.Second
	cfg.WarningUnaryRequestDuration = 5 * time.Second
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(etcdLogger(s.life, s.log, s.fail))

	// etcd ends the goroutine that it finds damage in (see etcdLogger): this one,
	// or one that this one then waits for in vain.
	type outcome struct {
		server *embed.Etcd
		err    error
	}
	started := make(chan outcome, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				started <- outcome{err: fmt.Errorf("etcd: %v", p)}
			}
		}()
		server, err := embed.StartEtcd(cfg)
		started <- outcome{server, err}
	}()
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("not ready after %v; the disk may be too slow or the machine too busy", startTimeout))
	defer cancel()
	select {
	case o := <-started:
		if o.err != nil {
			return s.describeStartError(o.err)
		}
		s.server = o.server
	case <-s.life.Done():
		return s.describeStartError(context.Cause(s.life))
	case <-ctx.Done():
		return fmt.Errorf("open store %s: %w", s.dir, context.Cause(ctx))
	}
	select {
	case <-s.server.Server.ReadyNotify():
	case <-s.life.Done():
		return s.describeStartError(context.Cause(s.life))
	case <-ctx.Done():
		return fmt.Errorf("open store %s: %w", s.dir, context.Cause(ctx))
	}
	// Its first entries are in the log by now.
	if err := writeFormat(s.dir, format); err != nil {
		return err
	}
	s.client = v3client.New(s.server.Server)
	if err := s.clearAlarms(ctx); err != nil {
		return fmt.Errorf("open store %s: %w", s.dir, err)
	}
	return nil
}

// describeStartError says what to do about an error of etcd's at its start.
func (s *Store) describeStartError(err error) error {
	if death := (deathError{}); errors.As(err, &death) {
		err = death.cause
	}
	if errors.Is(err, syscall.ENOSPC) {
		return fmt.Errorf("open store: the disk that holds %s is full; make room and start again: %w", s.dir, ErrNoSpace)
	}
	if op := (&net.OpError{}); errors.As(err, &op) && op.Op == "listen" {
		return fmt.Errorf("the store cannot listen: %w; name an address of this machine and a free port", err)
	}
	if errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("open store: %w; run as the user that owns %s", err, s.dir)
	}
	return fmt.Errorf("the store in %s is damaged (%w); what runs goes on: move the directory away and restore a copy by `trellis store restore FILE`, or start with an empty store by `trellis serve --adopt`, which leaves what runs alone, or `trellis serve --remove-all`, which removes it; `trellis up` makes networks anew", s.dir, err)
}

// deathError is why etcd has ended by itself.
type deathError struct {
	dir   string
	cause error
}

func (e deathError) Error() string {
	if errors.Is(e.cause, syscall.ENOSPC) {
		return fmt.Sprintf("the disk that holds %s is full (%v); make room and start trellis serve again", e.dir, e.cause)
	}
	return fmt.Sprintf("the store in %s has failed (%v); look at the disk, then start trellis serve again", e.dir, e.cause)
}

func (e deathError) Unwrap() error { return e.cause }

// fail ends the store's life because etcd has.
func (s *Store) fail(err error) { s.end(deathError{s.dir, err}) }

// Close ends the store. All that was written is on disk.
func (s *Store) Close() error {
	var err error
	s.closing.Do(func() {
		died := s.life.Err() != nil
		s.end(errClosed)
		s.workers.Wait()
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			if s.client != nil {
				s.client.Close()
			}
			if s.server != nil {
				s.server.Close()
			}
		}()
		if died {
			// A dead etcd does not always stop: goroutines of it may be gone.
			select {
			case <-stopped:
			case <-time.After(stopTimeout):
			}
		} else {
			<-stopped
		}
		if s.lock != nil {
			err = s.lock.Close()
		}
	})
	return err
}
