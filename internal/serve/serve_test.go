package serve

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"

	trellisv1 "trellis/api/trellis/v1"
	"trellis/api/trellis/v1/trellisv1connect"
	"trellis/internal/agent"
	"trellis/internal/agentapi"
	"trellis/internal/config"
	"trellis/internal/plan"
	"trellis/internal/store"
)

// brokenEnv makes the service of a test fail at its start, with its value.
const brokenEnv = "TRELLIS_TEST_BROKEN_AGENT"

// TestMain lets the test binary stand in for `trellis serve`, with an agent that
// says yes to everything.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "serve" {
		var c Config
		f := flag.NewFlagSet("serve", flag.ExitOnError)
		f.StringVar(&c.StateDir, "state-dir", "", "")
		f.StringVar(&c.RunDir, "run-dir", "", "")
		f.StringVar(&c.Instance, "instance", "", "")
		f.StringVar(&c.Runtime, "runtime", "", "")
		f.StringVar(&c.LogLevel, "log-level", "", "")
		f.BoolVar(&c.Adopt, "adopt", false, "")
		f.BoolVar(&c.RemoveAll, "remove-all", false, "")
		f.DurationVar(&c.StartTimeout, "start-timeout", 0, "")
		file := f.String("config", "", "")
		if err := f.Parse(os.Args[2:]); err != nil {
			os.Exit(2)
		}
		if *file != "" {
			var err error
			if c.Settings, err = config.Read(*file); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(2)
			}
		}
		c.newAgent = func(c agent.Config) (Agent, error) {
			if why := os.Getenv(brokenEnv); why != "" {
				return nil, errors.New(why)
			}
			return &yes{config: c}, nil
		}
		if err := Run(context.Background(), c); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// yes reports every plan as carried out.
type yes struct {
	agentapi.Agent // not called here beyond the methods below
	config         agent.Config
}

func (y *yes) Underlay() agent.Underlay { return agent.Underlay{} }

func (y *yes) UnderlayChanged() <-chan struct{} { return nil }

func (y *yes) Addresses(context.Context, string, []string) (map[string][]netip.Addr, error) {
	return nil, nil
}
func (y *yes) UplinkStats(context.Context) ([]agentapi.UplinkStats, error) { return nil, nil }

func (y *yes) Prepare(context.Context, *plan.Plan) error { return nil }

func (y *yes) DryRun(context.Context, *plan.Plan) ([]agentapi.Step, error) { return nil, nil }

func (y *yes) Run(ctx context.Context) error {
	for e := range y.config.Store.WatchPlans(ctx, y.config.Host) {
		if e.Plan == nil {
			continue
		}
		st := &store.Status{Generation: e.Plan.Generation, Phase: store.PhaseConverged}
		if e.Plan.Empty() {
			st.Phase = store.PhaseRemoved
		}
		if err := y.config.Store.PutStatuses(ctx, y.config.Host, map[string]*store.Status{e.VNet: st}); err != nil && ctx.Err() == nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
	}
	return nil
}

// place gives directories for a service, and stops it with the test.
func place(t *testing.T) Config {
	t.Helper()
	dir := t.TempDir()
	c := Config{StateDir: filepath.Join(dir, "state"), RunDir: filepath.Join(dir, "run")}
	t.Cleanup(func() {
		if err := Stop(c); err != nil {
			t.Error(err)
		}
	})
	return c
}

func client(c Config) trellisv1connect.VNetServiceClient {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	return trellisv1connect.NewVNetServiceClient(&http.Client{Transport: &http.Transport{
		Protocols: protocols, DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", c.socket())
		},
	}}, "http://trellis")
}

func mustPid(t *testing.T, c Config) int {
	t.Helper()
	r, err := client(c).Info(t.Context(), connect.NewRequest(&trellisv1.InfoRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	return int(r.Msg.Pid)
}

func mustUp(t *testing.T, c Config, name string) {
	t.Helper()
	stream, err := client(c).Apply(t.Context(), connect.NewRequest(&trellisv1.ApplyRequest{Wait: true, Vnet: &trellisv1.VNet{
		Name: name, Nodes: []*trellisv1.Node{{Name: "a"}},
	}}))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	for stream.Receive() {
		if stream.Msg().GetResult() != nil {
			return
		}
	}
	t.Fatalf("no result: %v", stream.Err())
}

func TestBackgroundStartsAndStops(t *testing.T) {
	c := place(t)
	begin := time.Now()
	if err := Background(c); err != nil {
		t.Fatal(err)
	}
	t.Logf("ready after %v", time.Since(begin))
	pid := mustPid(t, c)
	if sid, err := getsid(pid); err != nil || sid != pid {
		t.Errorf("session %d of process %d, %v: not its own", sid, pid, err)
	}
	if info, err := os.Stat(c.socket()); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("socket: %v, %v; want mode 0600", info.Mode(), err)
	}
	mustUp(t, c, "x")
	t.Logf("%s", status(t, pid, "VmRSS"))

	err := Background(c)
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("runs already (process %d", pid)) {
		t.Errorf("second service: %v", err)
	}
	if mustPid(t, c) != pid {
		t.Error("the second service has disturbed the first")
	}

	begin = time.Now()
	if err := Stop(c); err != nil {
		t.Fatal(err)
	}
	t.Logf("stopped after %v", time.Since(begin))
	if _, err := os.Stat(fmt.Sprintf("/proc/%d/fd/0", pid)); err == nil {
		t.Error("the process has outlived Stop")
	}
	if err := Stop(c); err != nil {
		t.Errorf("stop of nothing: %v", err)
	}
}

func getsid(pid int) (int, error) {
	sid, _, errno := syscall.Syscall(syscall.SYS_GETSID, uintptr(pid), 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(sid), nil
}

// status gives a line of /proc/PID/status.
func status(t *testing.T, pid int, key string) string {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if strings.HasPrefix(line, key) {
			return strings.TrimSpace(line)
		}
	}
	return ""
}

func TestKilledServiceStartsAgain(t *testing.T) {
	c := place(t)
	if err := Background(c); err != nil {
		t.Fatal(err)
	}
	mustUp(t, c, "x")
	for range 3 {
		old := mustPid(t, c)
		if pid, err := Running(c); err != nil || pid != old {
			t.Errorf("the process that runs is %d, %v; want %d", pid, err, old)
		}
		if err := Kill(c); err != nil {
			t.Fatal(err)
		}
		if pid, err := Running(c); err != nil || pid != 0 {
			t.Errorf("the process that runs after the kill is %d, %v", pid, err)
		}
		// The socket and the lock file stay; the lock goes with the process.
		for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(5 * time.Millisecond) {
			err := Background(c)
			if err == nil {
				break
			}
			if !strings.Contains(err.Error(), "runs already") || time.Now().After(deadline) {
				t.Fatal(err)
			}
		}
		if mustPid(t, c) == old {
			t.Fatal("the process was not killed")
		}
		r, err := client(c).List(t.Context(), connect.NewRequest(&trellisv1.ListRequest{}))
		if err != nil || len(r.Msg.Vnets) != 1 || r.Msg.Vnets[0].State != "degraded" && r.Msg.Vnets[0].State != "running" {
			t.Errorf("after the kill: %v, %v", r, err)
		}
	}
}

func TestFailedStartIsTold(t *testing.T) {
	c := place(t)
	t.Setenv(brokenEnv, "crun is not installed; apt-get install crun")
	err := Background(c)
	if err == nil || !strings.Contains(err.Error(), "crun is not installed") {
		t.Errorf("error %v", err)
	}
	b, rerr := os.ReadFile(filepath.Join(c.StateDir, "trellis.log"))
	if rerr != nil || !strings.Contains(string(b), "crun is not installed") {
		t.Errorf("log %q, %v", b, rerr)
	}
}

func TestSharedStateDirIsRefused(t *testing.T) {
	c := place(t)
	if err := Background(c); err != nil {
		t.Fatal(err)
	}
	other := c
	other.RunDir = filepath.Join(t.TempDir(), "run")
	err := Background(other)
	if err == nil || !strings.Contains(err.Error(), "in use by another trellis serve") {
		t.Errorf("two services on one store: %v", err)
	}
}

func TestInstancesRunSideBySide(t *testing.T) {
	a, b := place(t), place(t)
	for _, c := range []Config{a, b} {
		if err := Background(c); err != nil {
			t.Fatal(err)
		}
	}
	if mustPid(t, a) == mustPid(t, b) {
		t.Error("two instances are one process")
	}
	if err := Stop(a); err != nil {
		t.Fatal(err)
	}
	mustUp(t, b, "x")
}

func TestStopSparesTheInnocent(t *testing.T) {
	c := place(t)
	if err := os.MkdirAll(c.RunDir, 0o700); err != nil {
		t.Fatal(err)
	}
	bystander := exec.Command("sleep", "60")
	if err := bystander.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := bystander.Process.Kill(); err != nil {
			t.Error("the bystander was killed")
		}
		bystander.Wait() //nolint:errcheck // killed
	}()
	// The id of an earlier service is another program's by now.
	if err := os.WriteFile(c.lockPath(), []byte(strconv.Itoa(bystander.Process.Pid)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Stop(c); err != nil {
		t.Error(err)
	}
	if ok, err := c.signal(bystander.Process.Pid, syscall.SIGTERM); ok || err != nil {
		t.Errorf("signal to a bystander: %v, %v", ok, err)
	}
	if err := bystander.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("bystander: %v", err)
	}
}

func TestRunAnswersHealthAndJSON(t *testing.T) {
	c := place(t)
	c.newAgent = func(c agent.Config) (Agent, error) { return &yes{config: c}, nil }
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- Run(ctx, c) }()
	h := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", c.socket())
	}}}
	defer h.CloseIdleConnections()
	var r *http.Response
	var err error
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if r, err = h.Get("http://trellis" + HealthPath); err == nil {
			break
		}
	}
	if err != nil || r.StatusCode != http.StatusOK {
		t.Fatalf("health: %v, %v", r, err)
	}
	r.Body.Close()
	r, err = h.Post("http://trellis"+trellisv1connect.VNetServiceListProcedure, "application/json", strings.NewReader("{}"))
	if err != nil || r.StatusCode != http.StatusOK {
		t.Fatalf("list as JSON: %v, %v", r, err)
	}
	r.Body.Close()
	cancel()
	if err := <-ran; err != nil {
		t.Errorf("run: %v", err)
	}
}

func TestConfigIsChecked(t *testing.T) {
	for _, c := range []Config{{Instance: "Too Long"}, {LogLevel: "loud"}} {
		if _, err := c.complete(); err == nil {
			t.Errorf("%+v was accepted", c)
		}
	}
	c, err := Config{}.complete()
	if err != nil || c.Instance != "trellis" || c.socket() != "/run/trellis/trellis.sock" {
		t.Errorf("default: %+v, %v", c, err)
	}
	if tag := instance("/run/lab"); !instancePattern.MatchString(tag) || tag == instance("/run/lab2") {
		t.Errorf("tag %q", tag)
	}
}

func TestCgroupMount(t *testing.T) {
	for line, want := range map[string]string{
		"33 24 0:28 / /sys/fs/cgroup/memory rw,nosuid shared:9 - cgroup cgroup rw,memory": "/sys/fs/cgroup/memory",
		"34 24 0:29 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw":                             "/sys/fs/cgroup",
		"34 24 0:29 /docker/x /sys/fs/cgroup rw - cgroup2 cgroup2 rw":                     "",
		"35 24 0:30 / /sys rw - sysfs sysfs rw":                                           "",
		"nonsense":                                                                        "",
	} {
		got, ok := cgroupMount(line)
		if ok != (want != "") || ok && got != want {
			t.Errorf("%q: %q, %v", line, got, ok)
		}
	}
}

// Of several that find no service, one starts it and the others wait for it.
func TestSeveralStartsAtOnce(t *testing.T) {
	c := place(t)
	var mu sync.Mutex
	var all sync.WaitGroup
	count := 0
	for range 4 {
		all.Go(func() {
			started, err := Ensure(c)
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := client(c).List(t.Context(), connect.NewRequest(&trellisv1.ListRequest{})); err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			if started {
				count++
			}
		})
	}
	all.Wait()
	if count != 1 {
		t.Errorf("%d have started a service, want 1", count)
	}
	if err := Background(c); !errors.Is(err, ErrRunning) || !strings.Contains(err.Error(), "runs already") {
		t.Errorf("another start: %v", err)
	}
}

func TestHiddenCgroups(t *testing.T) {
	const (
		machine = "22 1 0:21 / /sys rw - sysfs sysfs rw\n30 22 0:26 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw\n"
		hidden  = "22 1 0:21 / / rw - ext4 /dev/vda rw\n40 22 0:30 / /sys rw - sysfs cgx rw\n"
	)
	for _, c := range []struct {
		own, first string
		want       bool
	}{{machine, machine, false}, {hidden, machine, true}, {hidden, hidden, false}, {machine, hidden, false}} {
		if got := hidesCgroups(c.own, c.first); got != c.want {
			t.Errorf("hidden: %v, want %v, of\n%s", got, c.want, c.own)
		}
	}
}
