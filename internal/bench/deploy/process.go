package deploy

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"trellis/internal/bench"
)

// process is a command that runs in the namespaces of a space.
type process struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed when it has ended
	err   error         // why, after that; never nil
}

// startIn starts a command in the namespaces of a space, and in a session of its
// own, so that an interrupt at the terminal reaches this process alone. The
// kernel kills the command when the space's thread ends, so when this process
// does, however that ends.
func startIn(space *bench.Space, cmd *exec.Cmd) (*process, error) {
	p := &process{cmd: cmd, ended: make(chan struct{})}
	err := space.Do(func() error {
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
		return cmd.Start()
	})
	if err != nil {
		return nil, err
	}
	go func() {
		if p.err = cmd.Wait(); p.err == nil {
			p.err = errors.New("the service has ended by itself")
		}
		close(p.ended)
	}()
	return p, nil
}

// kill ends the process at once, without warning.
func (p *process) kill() error {
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-p.ended
	return nil
}

// stop ends the process: by a request, and if that has no effect, by force.
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
	if err := p.kill(); err != nil {
		return err
	}
	return fmt.Errorf("it had to be killed %s after it was told to stop", stopTime)
}

// lastLines gives the end of a log, or what begins with the runtime's word of a
// crash.
func lastLines(path string) string {
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
