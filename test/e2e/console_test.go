package e2e

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"

	"trellis/test/testenv"
)

// screen is a terminal, with what has been written to it.
type screen struct {
	keys *os.File

	mu   sync.Mutex
	text bytes.Buffer
	from int // what expect has not seen yet
}

func (c *screen) read() {
	b := make([]byte, 4096)
	for {
		n, err := c.keys.Read(b)
		c.mu.Lock()
		c.text.Write(b[:n])
		c.mu.Unlock()
		if err != nil {
			return // the other side has closed the terminal
		}
	}
}

// expect waits until text has been written since the last time.
func (c *screen) expect(t *testing.T, text string) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		c.mu.Lock()
		rest := c.text.String()[c.from:]
		i := strings.Index(rest, text)
		if i >= 0 {
			c.from += i + len(text)
		}
		c.mu.Unlock()
		if i >= 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%q does not appear; since the last time there is %q", text, rest)
		}
	}
}

func (c *screen) press(t *testing.T, keys string) {
	t.Helper()
	if _, err := c.keys.WriteString(keys); err != nil {
		t.Fatal(err)
	}
}

// openConsole starts `trellis console` on a terminal; ended gives its exit status.
func openConsole(t *testing.T, s *testenv.Service, node string) (*screen, <-chan int) {
	t.Helper()
	keys, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { keys.Close() })
	if err := pty.Setsize(keys, &pty.Winsize{Rows: 33, Cols: 111}); err != nil {
		t.Fatal(err)
	}
	cmd := s.Command(t.Context(), "console", node)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	cmd.Env = append(cmd.Env, "TERM=dumb")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := s.NS.Start(cmd); err != nil {
		t.Fatal(err)
	}
	tty.Close()
	c := &screen{keys: keys}
	go c.read()
	c.expect(t, "# ") // what is typed before the shell reads would be echoed twice
	ended := make(chan int, 1)
	go func() {
		_ = cmd.Wait() // its exit status is in ProcessState
		ended <- cmd.ProcessState.ExitCode()
	}()
	return c, ended
}

func mustEnd(t *testing.T, ended <-chan int, code int) {
	t.Helper()
	select {
	case got := <-ended:
		if got != code {
			t.Errorf("the console's exit status is %d, want %d", got, code)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the console does not end")
	}
}

// jobs gives the states of the processes of a node that run a command, as ps has
// them: + is the foreground of a terminal, T one that is stopped.
func jobs(t *testing.T, s *testenv.Service, command string) (states []string) {
	t.Helper()
	for line := range strings.Lines(s.Must("exec", "p/a", "--", "ps", "ax", "-o", "stat=,args=")) {
		if state, args, _ := strings.Cut(strings.TrimSpace(line), " "); strings.TrimSpace(args) == command {
			states = append(states, state)
		}
	}
	return states
}

// inForeground waits until a command has the terminal, so that keys are for it.
func inForeground(t *testing.T, s *testenv.Service, command string) {
	t.Helper()
	eventually(t, 20*time.Second, command+" has the terminal", func() bool {
		states := jobs(t, s, command)
		return len(states) == 1 && strings.Contains(states[0], "+") && states[0][0] != 'T'
	})
}

// notThere waits until a command has ended.
func notThere(t *testing.T, s *testenv.Service, command string) {
	t.Helper()
	eventually(t, 20*time.Second, command+" has ended", func() bool { return len(jobs(t, s, command)) == 0 })
}

func TestConsole(t *testing.T) {
	t.Parallel()
	s := testenv.StartService(t, testenv.Options{})
	s.Must("up", write(t, "pair.yaml", fmt.Sprintf(pair, "p")))
	t.Run("a shell with job control", func(t *testing.T) {
		c, ended := openConsole(t, s, "p/a")
		c.press(t, "echo here: $((6*7)) $(hostname)\r")
		c.expect(t, "here: 42 a")
		c.press(t, "stty size\r")
		c.expect(t, "33 111")
		if err := pty.Setsize(c.keys, &pty.Winsize{Rows: 44, Cols: 122}); err != nil {
			t.Fatal(err)
		}
		eventually(t, 20*time.Second, "the new size is in the node", func() bool {
			c.press(t, "stty size | sed 's/^/size=/'\r")
			c.expect(t, "\nsize=")
			time.Sleep(50 * time.Millisecond)
			c.mu.Lock()
			defer c.mu.Unlock()
			return strings.HasPrefix(c.text.String()[c.from:], "44 122")
		})
		begin := time.Now()
		c.press(t, "sleep 60; echo ended: $?\r")
		inForeground(t, s, "sleep 60")
		c.press(t, "\x03")
		notThere(t, s, "sleep 60") // the terminal forgets what it holds at the interrupt
		c.press(t, "echo after: $?\r")
		c.expect(t, "\nafter: ")
		c.press(t, "sleep 61\r")
		inForeground(t, s, "sleep 61")
		c.press(t, "\x1a")
		c.expect(t, "topped") // [1]+  Stopped
		c.press(t, "jobs\r")
		c.expect(t, "sleep 61")
		c.press(t, "fg\r")
		c.expect(t, "sleep 61")
		inForeground(t, s, "sleep 61")
		c.press(t, "\x03")
		notThere(t, s, "sleep 61")
		c.press(t, "\r")
		if d := time.Since(begin); d > 50*time.Second { // neither was waited for
			t.Errorf("that took %v", d)
		}
		c.press(t, "exit 5\r")
		mustEnd(t, ended, 5)
	})
	t.Run("~. leaves", func(t *testing.T) {
		c, ended := openConsole(t, s, "p/a")
		c.press(t, "echo ready-$((1+1))\r")
		c.expect(t, "ready-2")
		c.press(t, "sleep 62\r")
		inForeground(t, s, "sleep 62")
		c.press(t, "\r~.")
		mustEnd(t, ended, 1)
		notThere(t, s, "sleep 62")
	})
	t.Run("without a terminal", func(t *testing.T) {
		if _, stderr, code := s.Trellis("console", "p/a"); code != 2 || !strings.Contains(stderr, "terminal") {
			t.Errorf("exit status %d: %s", code, stderr)
		}
	})
	s.Must("down", "p")
	nothingLeft(t, s)
}
