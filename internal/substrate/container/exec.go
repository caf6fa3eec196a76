package container

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/creack/pty"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// outputGrace is how long the output of a process is read after its end, where a
// child of it has inherited the output.
const outputGrace = time.Second

// Process is a process that runs in a node at somebody's request.
type Process struct {
	cmd      *exec.Cmd
	terminal *os.File // the master; nil without
	pidFile  string
	ctx      context.Context
	done     chan struct{}
	code     int
	err      error
}

var execs atomic.Uint64

// Exec runs a program in all namespaces of a running node, within the node's
// limits, and with no more rights than the node's own root. When ctx ends, the
// process is killed. The caller must call Wait.
func (r *Runtime) Exec(ctx context.Context, id ID, e ExecSpec) (*Process, error) {
	p, err := r.exec(ctx, id, e)
	if err != nil {
		return nil, fmt.Errorf("run in container %s: %w", id, err)
	}
	return p, nil
}

func (r *Runtime) exec(ctx context.Context, id ID, e ExecSpec) (*Process, error) {
	if len(e.Argv) == 0 || e.Argv[0] == "" {
		return nil, errors.New("no program was named")
	}
	c, err := r.loadRunning(id)
	if err != nil {
		return nil, err
	}
	if !c.Released {
		return nil, errors.New("it has not been released yet")
	}
	if err := r.provideTerminals(ctx, c); err != nil {
		return nil, err
	}
	if e.Rows == 0 || e.Cols == 0 {
		e.Rows, e.Cols = 24, 80
	}
	described := process(e.Argv, slices.Concat(c.Env, e.Env), e.TTY)
	if e.TTY {
		// From the start: the runtimes look at the size of their own terminal late.
		described.ConsoleSize = &specs.Box{Height: uint(e.Rows), Width: uint(e.Cols)}
	}
	spec, err := json.Marshal(described)
	if err != nil {
		return nil, err
	}
	// Named by process and number, so that no two collide; removed with the node
	// at the latest.
	base := filepath.Join(r.nodeDir(id), fmt.Sprintf("exec-%d-%d", os.Getpid(), execs.Add(1)))
	if err := os.WriteFile(base+".json", spec, 0o600); err != nil {
		return nil, err
	}
	p := &Process{pidFile: base + ".pid", ctx: ctx, done: make(chan struct{})}
	args := []string{"exec", "--process", base + ".json", "--pid-file", p.pidFile}
	if e.TTY {
		args = append(args, "--tty")
	}
	cmd, done, err := r.ociCommand(context.Background(), id, nil, nil, append(args, ociID(id))...)
	if err != nil {
		return nil, err
	}
	defer done()
	p.cmd = cmd
	if err := r.stage.do(func() error {
		if !r.oci.hideCgroups {
			// runc goes to where the root file system was at the start, although
			// nothing needs to be there.
			if err := os.MkdirAll(filepath.Join(assemblyDir(id), "root"), 0o711); err != nil {
				return err
			}
		}
		return p.start(e)
	}); err != nil {
		return nil, errors.Join(err, os.Remove(base+".json"))
	}
	return p, nil
}

// start starts the runtime's exec. To be called in a job.
func (p *Process) start(e ExecSpec) error {
	cmd := p.cmd
	// The runtime hands SIGHUP on to the process, should this one die.
	cmd.SysProcAttr.Pdeathsig = syscall.SIGHUP
	cmd.WaitDelay = outputGrace
	start := p.startPipes
	if e.TTY {
		start = p.startTerminal
	}
	finish, err := start(e)
	if err != nil {
		return err
	}
	go p.wait(finish)
	return nil
}

// startPipes gives the process plain files. Input is copied apart from
// exec.Cmd, whose Wait would wait for an input that never ends.
func (p *Process) startPipes(e ExecSpec) (func(), error) {
	p.cmd.Stdout, p.cmd.Stderr = e.Stdout, e.Stderr
	if e.Stdin == nil {
		return func() {}, p.cmd.Start()
	}
	in, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		// Ends with the input, or when the process has gone. Neither is an error here.
		_, _ = io.Copy(in, e.Stdin)
		in.Close()
	}()
	return func() { in.Close() }, nil
}

// startTerminal gives the process a terminal. The runtime makes it inside the
// node, and relays to one of ours; so no terminal of the host's gets in.
func (p *Process) startTerminal(e ExecSpec) (func(), error) {
	size := &pty.Winsize{Rows: e.Rows, Cols: e.Cols}
	p.cmd.SysProcAttr.Setsid, p.cmd.SysProcAttr.Setctty = true, true
	master, err := pty.StartWithAttrs(p.cmd, size, p.cmd.SysProcAttr)
	if err != nil {
		return nil, err
	}
	// The library has put the file into blocking mode, in which closing does not
	// wake readers.
	fd, err := unix.FcntlInt(master.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	master.Close()
	if err == nil {
		err = unix.SetNonblock(fd, true)
	}
	if err != nil {
		return nil, errors.Join(err, p.cmd.Process.Kill(), p.cmd.Wait())
	}
	master = os.NewFile(uintptr(fd), "terminal")
	p.terminal = master
	if e.Stdin != nil {
		go func() { _, _ = io.Copy(master, e.Stdin) }()
	}
	var read sync.WaitGroup
	out := e.Stdout
	if out == nil {
		out = io.Discard
	}
	// Reading ends with EIO when the last slave is closed.
	read.Go(func() { _, _ = io.Copy(out, master) })
	return func() {
		finished := make(chan struct{})
		go func() { read.Wait(); close(finished) }()
		select {
		case <-finished:
		case <-time.After(outputGrace):
		}
		master.Close()
		<-finished
	}, nil
}

// wait sees the process through.
func (p *Process) wait(finish func()) {
	ended := make(chan struct{})
	go func() {
		select {
		case <-p.ctx.Done():
			// First the process inside: without it the runtime ends by itself. One
			// that never came to be leaves the runtime to be killed.
			if err := p.kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
				_ = p.cmd.Process.Kill()
			}
		case <-ended:
		}
	}()
	err := p.cmd.Wait()
	close(ended)
	finish()
	os.Remove(strings.TrimSuffix(p.pidFile, ".pid") + ".json")
	os.Remove(p.pidFile)
	var exit *exec.ExitError
	switch {
	case p.ctx.Err() != nil:
		p.err = p.ctx.Err()
	case errors.As(err, &exit):
		p.code = exit.ExitCode()
		if ws, ok := exit.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
			p.code = 128 + int(ws.Signal())
		}
	case errors.Is(err, exec.ErrWaitDelay):
		// A child of the process still holds the output; the process itself ended well.
	default:
		p.err = err
	}
	close(p.done)
}

// Wait waits for the process and its output, and returns its exit code, or 128 +
// the signal that ended it. The error says that it could not be seen through.
func (p *Process) Wait() (int, error) {
	<-p.done
	return p.code, p.err
}

// Resize tells the process that its terminal has another size, in characters.
func (p *Process) Resize(rows, cols uint16) error {
	if p.terminal == nil {
		return errors.New("the process has no terminal")
	}
	select {
	case <-p.done:
		return os.ErrProcessDone
	default:
	}
	size := unix.Winsize{Row: rows, Col: cols}
	if err := setSize(p.terminal, &size); err != nil {
		return err
	}
	// The runtime should hand the size on, but exec of crun 1.8 does not.
	pid, err := p.pid()
	if err != nil {
		return nil // ended, or not started: then it reads the size that was just set
	}
	name := fmt.Sprintf("/proc/%d/fd/0", pid)
	var st unix.Stat_t
	if err := unix.Stat(name, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR || unix.Major(st.Rdev) != ptsMajor {
		return nil // the process has ended, or has turned its input away from the terminal
	}
	inner, err := os.OpenFile(name, unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	defer inner.Close()
	return setSize(inner, &size)
}

// ptsMajor is the device number of terminals in a devpts (Documentation/admin-guide/devices.txt).
const ptsMajor = 136

// setSize leaves the file in its mode, as Fd would not.
func setSize(f *os.File, size *unix.Winsize) error {
	c, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	err = c.Control(func(fd uintptr) { set = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, size) })
	return errors.Join(err, set)
}

// startTimeout is how long the runtime may take to say what it has started.
const startTimeout = 5 * time.Second

// pid is the process as the host sees it. The runtime writes it down shortly
// after the process has begun to run.
func (p *Process) pid() (int, error) {
	for deadline := time.Now().Add(startTimeout); ; {
		b, err := os.ReadFile(p.pidFile)
		if err == nil {
			if pid, err := strconv.Atoi(strings.TrimSpace(string(b))); err == nil {
				return pid, nil
			}
		}
		if time.Now().After(deadline) {
			return 0, errors.New("the process has not started yet")
		}
		select {
		case <-p.done:
			return 0, os.ErrProcessDone
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// kill ends the process, and what it has started and not sent into a session of its own.
func (p *Process) kill() error {
	if pid, err := p.pid(); err == nil {
		// The runtime has begun a session for it, in which nothing else is.
		group, err1 := unix.Getpgid(pid)
		session, err2 := unix.Getsid(pid)
		if err1 == nil && err2 == nil && group == session && group != unix.Getpgrp() {
			_ = unix.Kill(-group, unix.SIGKILL)
		}
	}
	return p.Signal(syscall.SIGKILL)
}

// Signal sends a signal to the process.
func (p *Process) Signal(sig syscall.Signal) error {
	select {
	case <-p.done:
		return os.ErrProcessDone
	default:
	}
	pid, err := p.pid()
	if err != nil {
		return err
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return os.ErrProcessDone
	}
	defer unix.Close(fd)
	// The runtime is the parent and has not reaped it while the runtime lives.
	select {
	case <-p.done:
		return os.ErrProcessDone
	default:
	}
	return unix.PidfdSendSignal(fd, sig, nil, 0)
}
