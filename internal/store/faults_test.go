package store

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"

	"trellis/internal/plan"
	"trellis/test/testenv"
)

// wantSentence wants an error of one line that has all the words.
func wantSentence(t *testing.T, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("more than one line: %q", err)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q does not say %q", err, w)
		}
	}
}

func TestSecondOpenIsRefused(t *testing.T) {
	dir := t.TempDir()
	open(t, dir)
	start := time.Now()
	_, err := Open(t.Context(), Options{Dir: dir})
	wantSentence(t, err, dir, "in use", "state directory")
	if d := time.Since(start); d > time.Second {
		t.Errorf("refused only after %v", d)
	}
}

func TestForeignDirectoryIsRefused(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "letters"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Open(t.Context(), Options{Dir: dir})
	wantSentence(t, err, dir, "letters", "name another")
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("the directory was touched: %v", entries)
	}
}

func TestUnknownFormatIsRefused(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, formatFile), []byte("99\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Open(t.Context(), Options{Dir: dir})
	wantSentence(t, err, "format \"99\"")
}

func TestDamageIsNamed(t *testing.T) {
	damage := map[string]func(t *testing.T, member string){
		"tree overwritten": func(t *testing.T, member string) {
			overwrite(t, filepath.Join(member, "snap", "db"))
		},
		"log overwritten": func(t *testing.T, member string) {
			logs, err := filepath.Glob(filepath.Join(member, "wal", "*.wal"))
			if err != nil || len(logs) == 0 {
				t.Fatalf("no logs: %v", err)
			}
			for _, l := range logs {
				overwrite(t, l)
			}
		},
		"log gone": func(t *testing.T, member string) {
			if err := os.RemoveAll(filepath.Join(member, "wal")); err != nil {
				t.Fatal(err)
			}
			overwrite(t, filepath.Join(member, "snap", "db"))
		},
		"member a file": func(t *testing.T, member string) {
			if err := os.RemoveAll(member); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(member, []byte("x"), 0o600); err != nil {
				t.Fatal(err)
			}
		},
	}
	for name, do := range damage {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			t.Cleanup(func() {
				// An etcd that has died may be about to make one more file.
				for range 50 {
					if os.RemoveAll(dir) == nil {
						return
					}
					time.Sleep(20 * time.Millisecond)
				}
			})
			s, err := Open(t.Context(), Options{Dir: dir})
			if err != nil {
				t.Fatal(err)
			}
			rec, plans := record("a", 10, 1, 0)
			mustPut(t, s, rec, plans)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			do(t, filepath.Join(dir, memberDir))
			s, err = Open(t.Context(), Options{Dir: dir})
			if err == nil {
				s.Close()
			}
			wantSentence(t, err, dir, "damaged", "move the directory away")
		})
	}
}

// overwrite writes nonsense over the first half MiB of a file.
func overwrite(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(noise(512 << 10)); err != nil {
		t.Fatal(err)
	}
}

// smallDisk mounts a file system of so many MiB for the test.
func smallDisk(t *testing.T, mib string) string {
	t.Helper()
	testenv.NeedRoot(t, "mounts a small file system")
	dir := t.TempDir()
	if err := syscall.Mount("trellis-test", dir, "tmpfs", 0, "size="+mib+"m"); err != nil {
		t.Skipf("needs to mount a tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// fill leaves so many bytes free.
func fill(t *testing.T, dir string, leave int64) (path string) {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	// etcd may take a log segment meanwhile.
	for range 10 {
		var fs syscall.Statfs_t
		if err := syscall.Statfs(dir, &fs); err != nil {
			t.Fatal(err)
		}
		size := int64(fs.Bavail)*fs.Bsize - leave
		if size <= 0 {
			return f.Name()
		}
		if err = syscall.Fallocate(int(f.Fd()), 0, 0, size); err == nil {
			return f.Name()
		}
		if err := f.Truncate(0); err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatal(err)
	panic("not reached")
}

func TestFullDiskRefusesWritesAndAllowsRemoval(t *testing.T) {
	disk := smallDisk(t, "200")
	s := open(t, filepath.Join(disk, "etcd"))
	rec, plans := record("a", 5, 1, 0)
	mustPut(t, s, rec, plans)

	filler := fill(t, disk, 0)
	b, bPlans := record("b", 5, 1, 0)
	err := s.Put(t.Context(), b, bPlans)
	if !errors.Is(err, ErrNoSpace) {
		t.Fatalf("put on a full disk: %v", err)
	}
	wantSentence(t, err, "is full", "make room")
	if s.Err() != nil {
		t.Fatalf("the store has died of a full disk: %v", s.Err())
	}
	rec.State, rec.Generation = Removing, 2
	mustPut(t, s, rec, map[string]*plan.Plan{"h": {VNet: "a", Generation: 2}})
	if err := s.PutStatus(t.Context(), "h", "a", &Status{Generation: 2, Phase: PhaseRemoved}); err != nil {
		t.Errorf("status on a full disk: %v", err)
	}
	if err := s.Forget(t.Context(), rec); err != nil {
		t.Errorf("forget on a full disk: %v", err)
	}
	if _, err := os.Stat(s.ballast()); err == nil {
		t.Error("the ballast is there, and nothing was free")
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	mustPut(t, s, b, bPlans)
	if _, err := os.Stat(s.ballast()); err != nil {
		t.Errorf("with room again, there is no ballast: %v", err)
	}
}

func TestFullDiskRefusesStart(t *testing.T) {
	disk := smallDisk(t, "40")
	_, err := Open(t.Context(), Options{Dir: filepath.Join(disk, "etcd")})
	if !errors.Is(err, ErrNoSpace) {
		t.Fatalf("start on a small disk: %v", err)
	}
	wantSentence(t, err, "is full", "make room")
}

// On older kernels, a tmpfs takes any signal as a reason to end what it is at, and
// Go's runtime sends its threads signals at any time.
func TestSignalsDoNotKeepTheDiskFromBeingReserved(t *testing.T) {
	for _, c := range []struct {
		interrupted int
		then, want  error
	}{{3, nil, nil}, {3, unix.ENOSPC, unix.ENOSPC}, {0, unix.EOPNOTSUPP, nil}, {1 << 30, nil, nil}} {
		tries := 0
		err := retryInterrupted(func() error {
			if tries++; tries <= c.interrupted {
				return unix.EINTR
			}
			return c.then
		})
		if err != c.want {
			t.Errorf("interrupted %d times, then %v: %v after %d tries", c.interrupted, c.then, err, tries)
		}
	}
}

// TestDeathIsToldAndContained runs etcd into a full disk behind the store's back.
func TestDeathIsToldAndContained(t *testing.T) {
	disk := smallDisk(t, "100")
	s := open(t, filepath.Join(disk, "etcd"))
	watch := s.WatchPlans(t.Context(), "h")
	wantPlans(t, watch, "synced")
	fill(t, disk, 1<<20)
	died := false
	for i := 0; i < 100 && !died; i++ {
		ctx, cancel := s.call(t.Context())
		_, err := s.client.Txn(ctx).Then(clientv3.OpPut("filler", string(noise(1<<20+i)))).Commit()
		cancel()
		died = err != nil
	}
	select {
	case <-s.Done():
	case <-time.After(10 * time.Second):
		t.Fatal("etcd has survived a full disk")
	}
	wantSentence(t, s.Err(), disk, "full", "start trellis serve again")
	rec, plans := record("a", 1, 1, 0)
	if err := os.Remove(filepath.Join(disk, "filler")); err != nil {
		t.Fatal(err)
	}
	if err := s.Put(t.Context(), rec, plans); err == nil {
		t.Error("a dead store takes writes")
	}
	if _, ok := <-watch; ok {
		t.Error("an event from a dead store")
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
