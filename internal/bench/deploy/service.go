package deploy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	trellisv1 "trellis/api/trellis/v1"
	"trellis/internal/bench"
)

// Service is a throw-away service: a process in network and mount namespaces of
// its own, with directories of its own. Whatever it makes in the root context
// lies in the first and whatever it mounts in the second, so the machine's own
// network is not touched, other instances are not met, and both vanish with the
// process; the kernel ends that when this process dies, however it dies. The
// containers and control groups of a network do outlive it: [Start] removes
// those of predecessors that were killed.
type Service struct {
	// Address is that of the service's socket.
	Address string
	options Options
	client  Client
	home    home
	lock    *os.File
	process *process
}

// Options say how a service is started.
type Options struct {
	Program string // the trellis program
	Dial    func(address string) (Client, error)
	// Note is told what is worth a line: a predecessor that was cleaned up.
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
)

// home is where one service keeps everything.
type home struct{ base, run string }

func homeOf(name string) home {
	return home{filepath.Join(stateRoot, name), filepath.Join(runRoot, name)}
}

func (h home) state() string { return filepath.Join(h.base, "state") }
func (h home) log() string   { return filepath.Join(h.base, "log") }
func (h home) lock() string  { return filepath.Join(h.base, "lock") }

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
		func() error { return os.Rename(fresh, h.lock()) },
	} {
		if err := step(); err != nil {
			return h, nil, errors.Join(err, lock.Close(), h.remove())
		}
	}
	return h, lock, nil
}

// launch runs the service of a home and waits until it answers.
func launch(ctx context.Context, o Options, h home) (*Service, error) {
	s := &Service{Address: "unix://" + filepath.Join(h.run, "trellis.sock"), options: o, home: h}
	var err error
	if s.client, err = o.Dial(s.Address); err != nil {
		return nil, err
	}
	log, err := os.OpenFile(h.log(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(o.Program, "serve", "--run-dir", h.run, "--state-dir", h.state())
	cmd.Stdout, cmd.Stderr = log, log
	if s.process, err = startIsolated(cmd); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startTime, fmt.Errorf("it does not answer after %s", startTime))
	defer cancel()
	for {
		if _, err = s.client.Info(ctx, connect.NewRequest(&trellisv1.InfoRequest{})); err == nil {
			return s, nil
		}
		select {
		case <-s.process.ended:
			return nil, fmt.Errorf("%w: %s", s.process.err, lastWords(h.log()))
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("%w: %s", context.Cause(ctx), lastWords(h.log())), s.process.stop())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Client is a client of the service.
func (s *Service) Client() Client { return s.client }

// Stop takes every network down, ends the service and removes what it had. If
// the service has died meanwhile, which is an error, it is started once more for
// that. Where something could not be removed, the directories stay, for the next
// [Start] to try again.
func (s *Service) Stop(ctx context.Context) error {
	died := s.death()
	err := s.clear(ctx)
	if err != nil && died == nil { // perhaps because it is dying
		select {
		case <-s.process.ended:
			died = s.death()
		case <-time.After(time.Second):
		}
	}
	if e := s.process.stop(); e != nil && died == nil {
		err = errors.Join(err, fmt.Errorf("stop the throw-away service: %w: %s", e, lastWords(s.home.log())))
	}
	if died != nil {
		died = fmt.Errorf("the throw-away service has died: %w: %s", died, lastWords(s.home.log()))
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
	return errors.Join(died, err)
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

// clear takes every network down.
func (s *Service) clear(ctx context.Context) error {
	err := remove(ctx, s.client, &trellisv1.DeleteRequest{All: true}, func(*trellisv1.Progress) {})
	if err != nil {
		return fmt.Errorf("take down the networks of the throw-away service: %w: %s", err, lastWords(s.home.log()))
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
	s, err := launch(ctx, o, h)
	if err != nil {
		return err
	}
	err = s.clear(ctx)
	if e := s.process.stop(); e != nil {
		err = errors.Join(err, fmt.Errorf("stop the throw-away service: %w: %s", e, lastWords(h.log())))
	}
	return err
}

// process is a command that runs in namespaces of its own.
type process struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed when it has ended
	err   error         // why, after that; never nil
}

// startIsolated starts a command in a network namespace and a mount namespace of
// its own, and in a session of its own, so that an interrupt at the terminal
// reaches this process alone. The thread that has the namespaces lives as long
// as the command: the kernel kills the command when it ends.
func startIsolated(cmd *exec.Cmd) (*process, error) {
	p := &process{cmd: cmd, ended: make(chan struct{})}
	started := make(chan error)
	bench.OnThread(func() {
		err := isolate()
		if err == nil {
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
			err = cmd.Start()
		}
		started <- err
		if err != nil {
			return
		}
		if p.err = cmd.Wait(); p.err == nil {
			p.err = errors.New("the service has ended by itself")
		}
		close(p.ended)
	})
	return p, <-started
}

// isolate gives the calling thread new namespaces. The loopback interface is up
// and mounts do not spread to the machine.
func isolate() error {
	if err := unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("make namespaces: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keep mounts from spreading: %w", err)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open a socket: %w", err)
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	req.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req); err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	return nil
}

// stop ends the process: by a request, and if it does not heed that, by force.
func (p *process) stop() error {
	select {
	case <-p.ended:
		return p.err
	default:
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.ended:
		if p.cmd.ProcessState.Success() {
			return nil
		}
		return p.err
	case <-time.After(stopTime):
	}
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-p.ended
	return fmt.Errorf("it had to be killed %s after it was told to stop", stopTime)
}

// lastWords gives the end of a log, or what begins with the runtime's word of a
// crash.
func lastWords(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Sprintf("its log cannot be read: %v", err)
	}
	const most = 1500
	for _, word := range []string{"\nfatal error: ", "\npanic: "} {
		if i := strings.Index(string(text), word); i >= 0 {
			return "its log says: " + string(text[i+1:min(len(text), i+most)])
		}
	}
	if len(text) > most {
		text = append([]byte("…"), text[len(text)-most:]...)
	}
	if len(text) == 0 {
		return "its log is empty"
	}
	return "its log ends: " + string(text)
}
