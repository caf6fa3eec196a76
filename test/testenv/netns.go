package testenv

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// NetNS is a network namespace without a name.
type NetNS struct {
	file *os.File
}

// DoInProcess runs f on a thread in the network namespace of a process.
func DoInProcess(pid int, f func() error) error {
	file, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		return err
	}
	defer file.Close()
	return (&NetNS{file}).Do(f)
}

// NewNetNS makes a network namespace, with its loopback interface up, that goes
// away with the test. It skips the test where it does not run as root.
func NewNetNS(t testing.TB) *NetNS {
	t.Helper()
	NeedRoot(t, "makes network namespaces")
	ns, err := newNetNS()
	if err != nil {
		t.Fatalf("make a network namespace: %v", err)
	}
	t.Cleanup(func() { ns.file.Close() })
	ns.IP(t, "link", "set", "lo", "up")
	return ns
}

func newNetNS() (*NetNS, error) {
	type result struct {
		file *os.File
		err  error
	}
	made := make(chan result)
	// The thread stays locked, and so ends with the goroutine: nothing else
	// ever runs in the new namespace by accident.
	go func() {
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			made <- result{nil, err}
			return
		}
		file, err := os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()))
		made <- result{file, err}
	}()
	r := <-made
	return &NetNS{r.file}, r.err
}

// FD returns a file descriptor of the namespace, valid until the test ends.
func (n *NetNS) FD() int { return int(n.file.Fd()) }

// Path names the namespace for programs that want a path, such as
// `ip link set … netns PATH`.
func (n *NetNS) Path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.FD()) }

// Do runs f on a thread in the namespace.
func (n *NetNS) Do(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		if err := unix.Setns(n.FD(), unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("enter the network namespace: %w", err)
			return
		}
		done <- f()
	}()
	return <-done
}

// Start starts a command in the namespace. It does not survive the test
// process: what it starts in its turn may.
func (n *NetNS) Start(cmd *exec.Cmd) error { return hold(n, cmd) }

// Command returns a command that runs in the namespace whoever starts it.
func (n *NetNS) Command(name string, args ...string) *exec.Cmd {
	return exec.Command("nsenter", append([]string{"--net=" + n.Path(), "--", name}, args...)...)
}

// IP runs `ip` in the namespace with the arguments.
func (n *NetNS) IP(t testing.TB, args ...string) string {
	t.Helper()
	return Run(t, n.Command("ip", args...))
}

// IPBatch runs `ip` commands in the namespace, one a line, without the `ip`, and
// waits until links that they set up can send.
func (n *NetNS) IPBatch(t testing.TB, lines ...string) {
	t.Helper()
	batch := strings.Join(lines, "\n") + "\n"
	cmd := n.Command("ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(batch)
	Run(t, cmd)
	if SetsUp(batch) {
		n.Settle(t)
	}
}

// Settle waits until every link of the namespace that is up and has a carrier can send.
func (n *NetNS) Settle(t testing.TB) {
	t.Helper()
	Settle(t, func() (string, error) {
		out, err := n.Command("ip", "-o", "link", "show").Output()
		return string(out), err
	})
}

// settleWithin bounds what links may take: the kernel looks at their carriers once a
// second at the latest (linkwatch_schedule_work in net/core/link_watch.c).
const settleWithin = 5 * time.Second

// Settle waits until each link that `ip -o link show` names as up and with a carrier
// can send, as well. The kernel gives links their queue some time after they have got
// their carrier, and drops until then what is sent.
func Settle(t testing.TB, show func() (string, error)) {
	t.Helper()
	for deadline := time.Now().Add(settleWithin); ; time.Sleep(2 * time.Millisecond) {
		out, err := show()
		if err != nil {
			t.Fatalf("list the links: %v", err)
		}
		if canSend(out) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("links cannot send %v after they came up:\n%s", settleWithin, out)
		}
	}
}

// canSend reads the output of `ip -o link show`.
func canSend(links string) bool {
	for line := range strings.Lines(links) {
		carrier := strings.Contains(line, ",LOWER_UP") && !strings.Contains(line, "<NO-CARRIER")
		if carrier && (strings.Contains(line, " qdisc noop ") || strings.Contains(line, " state DOWN ")) {
			return false
		}
	}
	return true
}

var setsUp = regexp.MustCompile(`link (set|add) [^;&|\n]*\bup\b`)

// SetsUp tells whether commands of `ip` set a link up.
func SetsUp(commands string) bool { return setsUp.MatchString(commands) }

// Links returns the names of the namespace's interfaces, without lo.
func (n *NetNS) Links() ([]string, error) {
	out, err := n.Command("ip", "-o", "link", "show").CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("list the interfaces: %w: %s", err, out)
	}
	var names []string
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		name, _, _ := strings.Cut(strings.TrimSuffix(fields[1], ":"), "@")
		if name != "lo" {
			names = append(names, name)
		}
	}
	return names, nil
}

// hold starts a command in the namespace (nil: here) and makes the kernel kill
// it when this process ends. The kernel takes the thread that forked for the
// parent, so one thread does it for all and never ends.
func hold(n *NetNS, cmd *exec.Cmd) error {
	reply := make(chan error)
	forks <- fork{n, cmd, reply}
	return <-reply
}

type fork struct {
	ns    *NetNS
	cmd   *exec.Cmd
	reply chan error
}

var forks = make(chan fork)

func init() { go serveForks() }

func serveForks() {
	runtime.LockOSThread()
	home, err := os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()))
	for f := range forks {
		f.reply <- func() error {
			if err != nil {
				return err
			}
			if f.cmd.SysProcAttr == nil {
				f.cmd.SysProcAttr = &unix.SysProcAttr{}
			}
			f.cmd.SysProcAttr.Pdeathsig = unix.SIGKILL
			if f.ns != nil {
				if err := unix.Setns(f.ns.FD(), unix.CLONE_NEWNET); err != nil {
					return fmt.Errorf("enter the network namespace: %w", err)
				}
			}
			failed := f.cmd.Start()
			if err := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); err != nil {
				panic(fmt.Sprintf("testenv: leave a network namespace: %v", err))
			}
			return failed
		}()
	}
}
