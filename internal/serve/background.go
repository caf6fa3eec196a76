package serve

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// readyEnv names the file descriptor on which a service in the background tells
// its parent how the start went: the line "ready", or the error.
const readyEnv = "TRELLIS_READY_FD"

const readyLine = "ready"

// startTimeout bounds the wait for a service in the background to be ready,
// beside what it may wait for a store that is elsewhere.
const startTimeout = 60 * time.Second

// readyPipe is the child's end of that pipe. Without a parent it does nothing.
type readyPipe struct {
	f    *os.File
	told bool
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
func (p *readyPipe) ready() { p.tell(readyLine) }

// failed tells the parent why the service does not start. After ready it is too
// late, and does nothing.
func (p *readyPipe) failed(err error) {
	if err == nil {
		err = errors.New("trellis serve was stopped while it started")
	}
	p.tell(err.Error())
}

// tell writes to the parent, once. A parent that is gone does not matter.
func (p *readyPipe) tell(line string) {
	if p.f == nil || p.told {
		return
	}
	p.told = true
	fmt.Fprintln(p.f, line)
	p.f.Close()
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
	patience := startTimeout + c.StartTimeout
	if err := r.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return fmt.Errorf("wait for trellis serve: %w", err)
	}
	answer, err := bufio.NewReader(r).ReadString('\n')
	rest, _ := io.ReadAll(r)
	answer = strings.TrimSpace(answer + string(rest))
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("trellis serve (process %d) is not ready after %v; see %s", cmd.Process.Pid, patience, c.logPath())
	case answer == readyLine:
		return cmd.Process.Release()
	case answer != "":
		_ = cmd.Wait() // it has said why
		return errors.New(answer)
	}
	return fmt.Errorf("trellis serve ended at its start (%w); see %s", cmd.Wait(), c.logPath())
}
