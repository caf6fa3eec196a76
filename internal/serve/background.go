package serve

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// readyEnv names the file descriptor on which a service in the background reports to
// its parent how the start went: the line "ready", or the error.
const readyEnv = "TRELLIS_READY_FD"

const readyLine = "ready"

// runningPrefix stands before the error of a start where another service runs already.
const runningPrefix = "running: "

// startTimeout bounds the wait for a service in the background to be ready,
// beside what it may wait for a store that is elsewhere.
const startTimeout = 60 * time.Second

// readyPoll is how often one that somebody else starts is looked at.
const readyPoll = 20 * time.Millisecond

// readyPipe is the child's end of that pipe. Without a parent it does nothing.
type readyPipe struct {
	f        *os.File
	reported bool
}

// parentPipe finds the pipe to the parent that waits for this service.
func parentPipe() (*readyPipe, error) {
	v := os.Getenv(readyEnv)
	if v == "" {
		return &readyPipe{}, nil
	}
	os.Unsetenv(readyEnv)
	fd, err := strconv.Atoi(v)
	if err != nil || fd < 3 {
		return nil, fmt.Errorf("%s=%q is no file descriptor; it is not to be set by hand", readyEnv, v)
	}
	syscall.CloseOnExec(fd)
	return &readyPipe{f: os.NewFile(uintptr(fd), "ready")}, nil
}

func (p *readyPipe) background() bool { return p.f != nil }

// ready lets the parent go.
func (p *readyPipe) ready() { p.report(readyLine) }

// failed reports to the parent why the service does not start. After ready it is too
// late, and does nothing.
func (p *readyPipe) failed(err error) {
	if err == nil {
		err = errors.New("trellis serve was stopped while it started")
	}
	text := err.Error()
	if errors.Is(err, ErrRunning) {
		text = runningPrefix + text
	}
	p.report(text)
}

// report writes to the parent, once. A parent that is gone does not matter.
func (p *readyPipe) report(line string) {
	if p.f == nil || p.reported {
		return
	}
	p.reported = true
	fmt.Fprintln(p.f, line)
	p.f.Close()
}

// Ensure has a service of the instance run: it starts one in the background, unless
// one runs or is being started by somebody else, which it waits for. It reports whether
// it has started one.
func Ensure(c Config) (started bool, err error) {
	c, err = c.complete()
	if err != nil {
		return false, err
	}
	for deadline := time.Now().Add(startTimeout + c.StartTimeout); ; {
		if err := Background(c); !errors.Is(err, ErrRunning) {
			return err == nil, err
		}
		// The winner may fail to start: then it is somebody else's turn.
		for {
			if conn, err := net.Dial("unix", c.socket()); err == nil {
				return false, conn.Close()
			}
			if time.Now().After(deadline) {
				return false, fmt.Errorf("a trellis serve that somebody else has started (in %s) does not answer after %v; see %s", c.RunDir, startTimeout+c.StartTimeout, c.logPath())
			}
			time.Sleep(readyPoll)
			if pid, err := Running(c); err != nil {
				return false, err
			} else if pid == 0 {
				break
			}
		}
	}
}

// Background starts `trellis serve` as a process of its own, in a session and in
// control groups apart from the caller's, and returns when it is ready, or with
// the reason why it is not. Its log is STATE/trellis.log.
func Background(c Config) error {
	c, err := c.complete()
	if err != nil {
		return err
	}
	if err := c.mkdirs(); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("start trellis serve: %w", err)
	}
	defer r.Close()
	// What the runtime says before or beside the log (a panic) goes there too.
	out, err := os.OpenFile(c.logPath(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		w.Close()
		return fmt.Errorf("open the service's log: %w", err)
	}
	defer out.Close()
	args := []string{"serve", "--state-dir", c.StateDir, "--run-dir", c.RunDir,
		"--instance", c.Instance, "--runtime", c.Runtime, "--log-level", c.LogLevel,
		"--start-timeout", c.StartTimeout.String()}
	if file := c.Settings.File; file != "" {
		if file, err = filepath.Abs(file); err != nil {
			return fmt.Errorf("start trellis serve: %w", err)
		}
		args = append(args, "--config", file)
	}
	if c.Adopt {
		args = append(args, "--adopt")
	}
	if c.RemoveAll {
		args = append(args, "--remove-all")
	}
	cmd := exec.Command(self, args...)
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), readyEnv+"=3")
	cmd.Stdout, cmd.Stderr = out, out
	cmd.ExtraFiles = []*os.File{w}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	w.Close()
	if err != nil {
		return fmt.Errorf("start trellis serve: %w", err)
	}
	timeout := startTimeout + c.StartTimeout
	if err := r.SetReadDeadline(time.Now().Add(timeout)); err != nil {
		return fmt.Errorf("wait for trellis serve: %w", err)
	}
	answer, err := bufio.NewReader(r).ReadString('\n')
	rest, _ := io.ReadAll(r)
	answer = strings.TrimSpace(answer + string(rest))
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("trellis serve (process %d) is not ready after %v; see %s", cmd.Process.Pid, timeout, c.logPath())
	case answer == readyLine:
		return cmd.Process.Release()
	case answer != "":
		_ = cmd.Wait() // it has said why
		if text, ok := strings.CutPrefix(answer, runningPrefix); ok {
			return running(text)
		}
		return errors.New(answer)
	}
	return fmt.Errorf("trellis serve ended at its start (%w); see %s", cmd.Wait(), c.logPath())
}
