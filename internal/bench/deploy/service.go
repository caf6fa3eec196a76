package deploy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	trellisv1 "trellis/api/trellis/v1"
	"trellis/internal/bench"
	"trellis/internal/substrate/cgroup"
)

// Service is a throw-away service: a process in network and mount namespaces of
// its own, with directories of its own. Whatever it makes in the root context
// lies in the first and whatever it mounts in the second, so the machine's own
// network is not touched, other instances are not met, and both vanish with this
// process; the kernel ends the service when this process dies, however it dies. The
// containers and control groups of a network do outlive it: [Start] removes
// those of predecessors that were killed.
type Service struct {
	// Address is that of the service's socket.
	Address string
	options Options
	client  Client
	home    home
	lock    *os.File
	space   *bench.Space
	process *process
}

// Options say how a service is started.
type Options struct {
	Program string // the trellis program
	Dial    func(address string) (Client, error)
	// Note is called with what is worth a line: a predecessor that was cleaned up.
	Note func(format string, args ...any)
}

// Folders of throw-away services: the first where a machine's own service keeps
// its state, so on the same disk, the second beside its socket.
const (
	stateRoot = "/var/lib/trellis-bench"
	runRoot   = "/run/trellis-bench"
)

// How long a service may take.
const (
	startTime = 30 * time.Second
	stopTime  = 30 * time.Second
	// restartTime is for a service that finds many nodes.
	restartTime = 5 * time.Minute
)

// home is where one service keeps everything.
type home struct{ base, run string }

func homeOf(name string) home {
	return home{filepath.Join(stateRoot, name), filepath.Join(runRoot, name)}
}

func (h home) state() string    { return filepath.Join(h.base, "state") }
func (h home) socket() string   { return filepath.Join(h.run, "trellis.sock") }
func (h home) log() string      { return filepath.Join(h.base, "log") }
func (h home) instance() string { return filepath.Join(h.base, "instance") }
func (h home) lock() string     { return filepath.Join(h.base, "lock") }

// remove removes the directories, and the folders above if they are empty.
func (h home) remove() error {
	err := errors.Join(os.RemoveAll(h.run), os.RemoveAll(h.base))
	for _, dir := range []string{stateRoot, runRoot} {
		if e := os.Remove(dir); e != nil && !errors.Is(e, unix.ENOTEMPTY) && !errors.Is(e, os.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	return err
}

// Start starts a throw-away service, after it has removed what is left of
// predecessors that no longer run. It needs root.
func Start(ctx context.Context, o Options) (*Service, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("measuring needs root: it starts a service and makes namespaces; run it with sudo, or name a running service with --address")
	}
	if err := sweep(ctx, o); err != nil {
		return nil, err
	}
	h, lock, err := newHome()
	if err != nil {
		return nil, fmt.Errorf("make directories for a throw-away service: %w", err)
	}
	s, err := launch(ctx, o, h)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start a throw-away service: %w", err), lock.Close(), h.remove())
	}
	s.lock = lock
	return s, nil
}

// newHome makes the directories. The lock appears there when it is held, so that
// nobody takes the newborn for a dead one.
func newHome() (home, *os.File, error) {
	for _, dir := range []string{stateRoot, runRoot} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return home{}, nil, err
		}
	}
	base, err := os.MkdirTemp(stateRoot, "")
	if err != nil {
		return home{}, nil, err
	}
	h := homeOf(filepath.Base(base))
	fresh := h.lock() + ".new"
	lock, err := os.OpenFile(fresh, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return h, nil, errors.Join(err, h.remove())
	}
	for _, step := range []func() error{
		func() error { return unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) },
		func() error { return os.Mkdir(h.state(), 0o700) },
		func() error { return os.Mkdir(h.run, 0o700) },
		func() error { return os.WriteFile(h.instance(), []byte(newInstance(base)), 0o600) },
		func() error { return os.Rename(fresh, h.lock()) },
	} {
		if err := step(); err != nil {
			return h, nil, errors.Join(err, lock.Close(), h.remove())
		}
	}
	return h, lock, nil
}

// newInstance makes the tag of the service of a directory: one to eight of a-z
// and 0-9.
func newInstance(base string) string {
	n := crc32.ChecksumIEEE([]byte(base))
	return "b" + strconv.FormatUint(uint64(n), 36)
}

// launch runs the service of a home, in a space of its own, and waits until it
// answers.
func launch(ctx context.Context, o Options, h home) (*Service, error) {
	s := &Service{Address: "unix://" + h.socket(), options: o, home: h}
	var err error
	if s.client, err = o.Dial(s.Address); err != nil {
		return nil, err
	}
	if s.space, err = bench.NewServiceSpace(); err != nil {
		return nil, err
	}
	if err := s.run(ctx, startTime); err != nil {
		return nil, errors.Join(err, s.space.Close())
	}
	return s, nil
}

// run starts the process and waits until it answers.
func (s *Service) run(ctx context.Context, limit time.Duration) error {
	log, err := os.OpenFile(s.home.log(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	instance, err := os.ReadFile(s.home.instance())
	if err != nil {
		return err
	}
	cmd := exec.Command(s.options.Program, "serve", "--run-dir", s.home.run, "--state-dir", s.home.state(), "--instance", string(instance))
	cmd.Stdout, cmd.Stderr = log, log
	if s.process, err = startIn(s.space, cmd); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("it does not answer after %s", limit))
	defer cancel()
	for {
		if _, err = s.client.Info(ctx, connect.NewRequest(&trellisv1.InfoRequest{})); err == nil {
			return nil
		}
		select {
		case <-s.process.ended:
			return fmt.Errorf("%w: %s", s.process.err, lastLines(s.home.log()))
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("%w: %s", context.Cause(ctx), lastLines(s.home.log())), s.process.stop())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Kill kills the service's process without warning. What runs in its networks
// stays, and so do the namespaces that it was in.
func (s *Service) Kill() error { return s.process.kill() }

// Restart starts the service again after [Service.Kill], where it was.
func (s *Service) Restart(ctx context.Context) error { return s.run(ctx, restartTime) }

// PID is the service's process.
func (s *Service) PID() int { return s.process.cmd.Process.Pid }

// Program is the trellis program that runs as the service.
func (s *Service) Program() string { return s.options.Program }

// Client is a client of the service.
func (s *Service) Client() Client { return s.client }

// Stop takes every network down, ends the service and removes what it had. If
// the service has died meanwhile, which is an error, it is started once more for
// that. Where something could not be removed, the directories stay, for the next
// [Start] to try again.
//
// Networks that the service does not take down before ctx ends are an error as
// well; their nodes are then killed, and everything is removed without it.
func (s *Service) Stop(ctx context.Context) error {
	died := s.death()
	err := s.clear(ctx, nil)
	if err != nil && died == nil { // perhaps because it is dying
		select {
		case <-s.process.ended:
			died = s.death()
		case <-time.After(time.Second):
		}
	}
	var late error
	if ctx.Err() != nil && died == nil {
		late, err = err, nil
	}
	err = errors.Join(err, s.end())
	if late != nil {
		err = errors.Join(err, s.killNodes())
	}
	if died != nil {
		died = fmt.Errorf("the throw-away service has died: %w: %s", died, lastLines(s.home.log()))
		err = raze(ctx, s.options, s.home)
	}
	if err == nil {
		err = s.home.remove()
	} else {
		err = fmt.Errorf("%w; what is left is removed by the next `trellis bench deploy`, its log is %s", err, s.home.log())
	}
	if s.lock != nil {
		err = errors.Join(err, s.lock.Close())
	}
	return errors.Join(late, died, err)
}

// end ends the process, if it runs, and lets its namespaces go.
func (s *Service) end() error {
	var err error
	if s.death() == nil {
		if err = s.process.stop(); err != nil {
			err = fmt.Errorf("stop the throw-away service: %w: %s", err, lastLines(s.home.log()))
		}
	}
	return errors.Join(err, s.space.Close())
}

// processes gives the processes of all nodes.
func (s *Service) processes() (map[int]bool, error) {
	tree, err := s.home.groups()
	if err != nil {
		return nil, err
	}
	groups, err := tree.Groups()
	if err != nil {
		return nil, fmt.Errorf("list the control groups of the throw-away service: %w", err)
	}
	pids := map[int]bool{}
	for _, g := range groups {
		members, err := tree.Members(g)
		if err != nil {
			return nil, fmt.Errorf("list the processes of %s: %w", g, err)
		}
		for _, pid := range members {
			pids[pid] = true
		}
	}
	return pids, nil
}

// killNodes kills everything in the instance's control groups, and removes those.
// With the service gone and its namespaces with it, nothing else is left.
func (s *Service) killNodes() error {
	pids, err := s.processes()
	if err != nil {
		return err
	}
	for pid := range pids {
		if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("kill process %d of a node: %w", pid, err)
		}
	}
	tree, err := s.home.groups()
	if err != nil {
		return err
	}
	groups, err := tree.Groups()
	if err != nil {
		return fmt.Errorf("list the control groups of the throw-away service: %w", err)
	}
	for _, g := range groups {
		if err := tree.Remove(g, stopTime); err != nil {
			return err
		}
	}
	tree.Sweep()
	return nil
}

// groups are the control groups of the home's instance.
func (h home) groups() (*cgroup.Tree, error) {
	instance, err := os.ReadFile(h.instance())
	if err != nil {
		return nil, err
	}
	return cgroup.Find("trellis-" + string(instance))
}

// death tells why the service has ended without being told to; nil while it
// runs.
func (s *Service) death() error {
	select {
	case <-s.process.ended:
		return s.process.err
	default:
		return nil
	}
}

// clear takes every network down. Progress may be nil.
func (s *Service) clear(ctx context.Context, progress func(*trellisv1.Progress)) error {
	if progress == nil {
		progress = func(*trellisv1.Progress) {}
	}
	err := remove(ctx, s.client, &trellisv1.DeleteRequest{All: true}, progress)
	if err != nil {
		return fmt.Errorf("take down the networks of the throw-away service: %w: %s", err, lastLines(s.home.log()))
	}
	return nil
}

// sweep removes what predecessors that no longer run have left.
func sweep(ctx context.Context, o Options) error {
	entries, err := os.ReadDir(stateRoot)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	} else if err != nil {
		return fmt.Errorf("look for what earlier measurements have left: %w", err)
	}
	for _, e := range entries {
		h := homeOf(e.Name())
		lock, err := os.OpenFile(h.lock(), os.O_RDWR, 0)
		if errors.Is(err, os.ErrNotExist) {
			continue // being made just now, or removed
		} else if err != nil {
			return fmt.Errorf("look whether %s is in use: %w", h.base, err)
		}
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			o.Note("removing what a measurement that was killed has left (%s)", h.base)
			if err = raze(ctx, o, h); err == nil {
				err = h.remove()
			}
		} else if errors.Is(err, unix.EWOULDBLOCK) {
			err = nil // its owner lives
		}
		if err := errors.Join(err, lock.Close()); err != nil {
			return fmt.Errorf("remove what an earlier measurement has left in %s and %s: %w", h.base, h.run, err)
		}
	}
	return nil
}

// raze starts the service of a dead predecessor once more, for it to remove
// everything that carries its tag.
func raze(ctx context.Context, o Options, h home) error {
	if err := os.MkdirAll(h.run, 0o700); err != nil {
		return err
	}
	// A service dies with its measurement, but not at once: the call into the
	// kernel that it is in is finished first.
	stop := exec.CommandContext(ctx, o.Program, "serve", "--stop", "--run-dir", h.run, "--state-dir", h.state())
	if out, err := stop.CombinedOutput(); err != nil {
		return fmt.Errorf("end the service in %s: %w: %s", h.run, err, bytes.TrimSpace(out))
	}
	s, err := launch(ctx, o, h)
	if err != nil {
		return err
	}
	return errors.Join(s.clear(ctx, nil), s.end())
}
