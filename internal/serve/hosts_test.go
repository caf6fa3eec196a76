package serve

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	trellisv1 "trellis/api/trellis/v1"
	"trellis/internal/config"
	"trellis/internal/pki"
	"trellis/internal/store"
)

// machines makes services that share alpha's store, each with a configuration
// file and certificates of its own.
type machines struct {
	t     *testing.T
	certs string
	store string // host:port
}

func newMachines(t *testing.T) *machines {
	t.Helper()
	m := &machines{t: t, certs: filepath.Join(t.TempDir(), "pki"), store: freePort(t)}
	if _, err := pki.NewCA(m.certs, false); err != nil {
		t.Fatal(err)
	}
	return m
}

// freePort gives an address of the loopback that nobody listens at, and that the
// kernel does not give to a connection meanwhile: those are from 32768 up.
func freePort(t *testing.T) string {
	t.Helper()
	for range 1000 {
		at := fmt.Sprintf("127.0.0.1:%d", 20000+(50*os.Getpid()+int(ports.Add(1)))%10000)
		if l, err := net.Listen("tcp", at); err == nil {
			l.Close()
			return at
		}
	}
	t.Fatal("no port is free")
	panic("not reached")
}

// ports counts those that were given.
var ports atomic.Uint32

// machine gives the configuration of a service, which is stopped with the test.
// More are lines of its file.
func (m *machines) machine(name string, more ...string) Config {
	m.t.Helper()
	made, err := pki.NewHost(m.certs, pki.Identity{Name: name, Addresses: []string{"127.0.0.1"}}, true)
	if err != nil {
		m.t.Fatal(err)
	}
	where := fmt.Sprintf("store: {endpoints: [\"https://%s\"]}", m.store)
	if name == "alpha" {
		where = "store: {listen: " + m.store + "}"
	}
	c := place(m.t)
	text := strings.Join(append([]string{
		"host: " + name, where, "listen: " + freePort(m.t),
		fmt.Sprintf("tls: {ca: %s, cert: %s, key: %s}", made.Files.CA, made.Files.Cert, made.Files.Key),
	}, more...), "\n")
	file := filepath.Join(m.t.TempDir(), name+".yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		m.t.Fatal(err)
	}
	if c.Settings, err = config.Read(file); err != nil {
		m.t.Fatal(err)
	}
	return c
}

func mustStart(t *testing.T, c Config) {
	t.Helper()
	if err := Background(c); err != nil {
		t.Fatal(err)
	}
}

// liveHosts lists the live hosts.
func liveHosts(t *testing.T, c Config) string {
	t.Helper()
	r, err := client(c).Hosts(t.Context(), connect.NewRequest(&trellisv1.HostsRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, h := range r.Msg.Hosts {
		if h.State == "alive" {
			names = append(names, h.Name)
		}
	}
	return strings.Join(names, " ")
}

func eventually(t *testing.T, within time.Duration, want string, get func() string) {
	t.Helper()
	got := ""
	for deadline := time.Now().Add(within); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if got = get(); got == want {
			return
		}
	}
	t.Fatalf("%q after %v, want %q", got, within, want)
}

func TestServicesShareAStore(t *testing.T) {
	m := newMachines(t)
	metrics := freePort(t)
	alpha, beta := m.machine("alpha", "metrics: "+metrics), m.machine("beta", "capacity: {memory: 1GiB, cpu: 3}")
	mustStart(t, alpha)
	mustStart(t, beta)
	if got := liveHosts(t, alpha); got != "alpha beta" {
		t.Errorf("live hosts when both are ready: %q", got)
	}
	r, err := client(beta).Hosts(t.Context(), connect.NewRequest(&trellisv1.HostsRequest{}))
	if err != nil || len(r.Msg.Hosts) != 2 || r.Msg.Hosts[1].Memory != 1<<30 || r.Msg.Hosts[1].Cpu != 3 || r.Msg.Hosts[0].Memory == 0 {
		t.Errorf("hosts as beta lists them: %v, %v", r, err)
	}
	// A host that crashes is missed within seconds, and takes its name back at
	// once; one that stops is gone at once.
	if err := Kill(beta); err != nil {
		t.Fatal(err)
	}
	eventually(t, 15*time.Second, "alpha", func() string { return liveHosts(t, alpha) })
	mustStart(t, beta)
	if err := Kill(beta); err != nil {
		t.Fatal(err)
	}
	mustStart(t, beta)
	if got := liveHosts(t, alpha); got != "alpha beta" {
		t.Errorf("live hosts after a restart: %q", got)
	}
	if err := Stop(beta); err != nil {
		t.Fatal(err)
	}
	if got := liveHosts(t, alpha); got != "alpha" {
		t.Errorf("live hosts when beta has stopped: %q", got)
	}
	// Figures, at the address and on the socket.
	h := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, at string) (net.Conn, error) {
		if at == "trellis:80" {
			return (&net.Dialer{}).DialContext(ctx, "unix", alpha.socket())
		}
		return (&net.Dialer{}).DialContext(ctx, "tcp", at)
	}}}
	defer h.CloseIdleConnections()
	for _, at := range []string{metrics, "trellis"} {
		r, err := h.Get("http://" + at + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r.Body)
		r.Body.Close()
		if err != nil || !strings.Contains(string(text), "trellis_build_info") {
			t.Errorf("metrics at %s: %s %q, %v", at, r.Status, text, err)
		}
	}
}

func TestSecondHostOfANameIsRefused(t *testing.T) {
	m := newMachines(t)
	mustStart(t, m.machine("alpha"))
	beta := m.machine("beta")
	mustStart(t, beta)
	other := m.machine("beta")
	err := Background(other)
	if err == nil || !strings.Contains(err.Error(), `is called "beta"`) || !strings.Contains(err.Error(), "`host:`") {
		t.Errorf("a second host of one name: %v", err)
	}
	if pid := mustPid(t, beta); pid == 0 {
		t.Error("the first one is gone")
	}
	// It has never been that host, so the remedy works.
	text, err := os.ReadFile(other.Settings.File)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(other.Settings.File, []byte(strings.Replace(string(text), "host: beta", "host: gamma", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if other.Settings, err = config.Read(other.Settings.File); err != nil {
		t.Fatal(err)
	}
	mustStart(t, other)
	if got := liveHosts(t, beta); got != "alpha beta gamma" {
		t.Errorf("live hosts: %q", got)
	}
}

func TestStoreThatDoesNotAnswer(t *testing.T) {
	m := newMachines(t)
	alpha, beta := m.machine("alpha"), m.machine("beta")
	beta.StartTimeout = time.Second
	err := Background(beta)
	if err == nil || !strings.Contains(err.Error(), "does not answer") || !strings.Contains(err.Error(), m.store) {
		t.Errorf("start without a store: %v", err)
	}
	// With a longer timeout, the order of starting does not matter.
	beta.StartTimeout = 20 * time.Second
	started := make(chan error, 1)
	go func() { started <- Background(beta) }()
	time.Sleep(500 * time.Millisecond)
	mustStart(t, alpha)
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	// It goes away, requests are refused, and comes back.
	mustUp(t, beta, "x")
	if err := Stop(alpha); err != nil {
		t.Fatal(err)
	}
	_, err = client(beta).List(t.Context(), connect.NewRequest(&trellisv1.ListRequest{}))
	if connect.CodeOf(err) != connect.CodeUnavailable || !strings.Contains(err.Error(), "changes are refused until it is back") {
		t.Errorf("list while the store is away: %v", err)
	}
	mustStart(t, alpha)
	eventually(t, 15*time.Second, "alpha beta", func() string { return liveHosts(t, beta) })
	mustUp(t, beta, "y")
}

func TestAnotherStoreInThePlaceIsRefused(t *testing.T) {
	m := newMachines(t)
	alpha, beta := m.machine("alpha"), m.machine("beta")
	mustStart(t, alpha)
	mustStart(t, beta)
	for _, c := range []Config{beta, alpha} {
		if err := Stop(c); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.RemoveAll(filepath.Join(alpha.StateDir, "etcd")); err != nil {
		t.Fatal(err)
	}
	refused := func(c Config, words ...string) {
		t.Helper()
		err := Background(c)
		for _, w := range append(words, "--adopt", "--remove-all") {
			if err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("start with another store does not say %q: %v", w, err)
			}
		}
	}
	refused(alpha, "is not in "+alpha.storeDir()+" any more", "trellis store restore")
	if _, err := os.Stat(alpha.storeDir()); err == nil {
		t.Error("a refused start has made a store in the place of the old one")
	}
	// The run directory remembers what the state directory has lost.
	if err := os.Remove(filepath.Join(alpha.StateDir, storeFile)); err != nil {
		t.Fatal(err)
	}
	refused(alpha, "is not in "+alpha.storeDir()+" any more")
	fresh := alpha
	fresh.RemoveAll = true
	mustStart(t, fresh)
	refused(beta, "is another one than this host's networks are in")
	beta.Adopt = true
	mustStart(t, beta)
	for _, c := range []*Config{&fresh, &beta} {
		if err := Stop(*c); err != nil {
			t.Fatal(err)
		}
		c.Adopt, c.RemoveAll = false, false
		mustStart(t, *c) // it belongs to that store now
	}
	// One that is there, and is another.
	if err := Stop(fresh); err != nil {
		t.Fatal(err)
	}
	for _, note := range fresh.storeNotes() {
		if err := os.WriteFile(note, []byte("another\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	refused(fresh, "is another one than this host's networks are in")
}

// A host changes between a store of its own and one elsewhere only where that takes
// down nothing that it has not been told to.
func TestHostDoesNotLeaveItsNetworks(t *testing.T) {
	m := newMachines(t)
	mustStart(t, m.machine("alpha"))
	joined := m.machine("beta")
	alone := joined
	alone.Settings = nil
	mustStart(t, alone)
	mustUp(t, alone, "x")
	if err := Stop(alone); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(alone.StateDir, hostFile)); err != nil {
		t.Fatal(err)
	}
	err := Background(joined)
	if err == nil || !strings.Contains(err.Error(), "networks in a store of its own (x)") || !strings.Contains(err.Error(), "take them down first") {
		t.Fatalf("leave a store with a network: %v", err)
	}
	if err := os.RemoveAll(joined.storeDir()); err != nil {
		t.Fatal(err)
	}
	if err = Background(joined); err == nil || !strings.Contains(err.Error(), "--remove-all") {
		t.Fatalf("leave a store that is lost: %v", err)
	}
	forced := joined
	forced.RemoveAll = true
	mustStart(t, forced)
	if err := Stop(joined); err != nil {
		t.Fatal(err)
	}
	err = Background(alone)
	if err == nil || !strings.Contains(err.Error(), "`store:` in the configuration") {
		t.Errorf("start without the configuration that names the store: %v", err)
	}
	mustStart(t, joined)
	if err := Stop(joined); err != nil {
		t.Fatal(err)
	}
	alone.Adopt = true
	mustStart(t, alone)
}

// A host whose own store is empty may join others without a word.
func TestHostLeavesAnEmptyStore(t *testing.T) {
	m := newMachines(t)
	mustStart(t, m.machine("alpha"))
	joined := m.machine("beta")
	alone := joined
	alone.Settings = &config.Config{Host: "beta", Roles: config.Alone().Roles}
	if err := alone.fixName("beta"); err != nil {
		t.Fatal(err)
	}
	mustStart(t, alone)
	if err := Stop(alone); err != nil {
		t.Fatal(err)
	}
	mustStart(t, joined)
}

// A host's store may move elsewhere with all that is in it.
func TestHostFollowsItsStore(t *testing.T) {
	m := newMachines(t)
	alpha, joined := m.machine("alpha"), m.machine("beta")
	alone := joined
	alone.Settings = &config.Config{Host: "beta", Roles: config.Alone().Roles}
	if err := alone.fixName("beta"); err != nil {
		t.Fatal(err)
	}
	mustStart(t, alone)
	mustUp(t, alone, "x")
	if err := Stop(alone); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(alpha.StateDir, 0o711); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(alpha.storeDir(), os.DirFS(alone.storeDir())); err != nil {
		t.Fatal(err)
	}
	mustStart(t, alpha)
	mustStart(t, joined)
	if got := liveHosts(t, joined); got != "alpha beta" {
		t.Errorf("live hosts: %q", got)
	}
}

// fixName fixes a host's name before its first start.
func (c Config) fixName(name string) error {
	if err := os.MkdirAll(c.StateDir, 0o711); err != nil {
		return err
	}
	return c.rememberIdentity(name, "")
}

func TestHostWithTheAgentAlone(t *testing.T) {
	m := newMachines(t)
	alpha, beta := m.machine("alpha"), m.machine("beta", "roles: [agent]")
	mustStart(t, alpha)
	mustStart(t, beta)
	if got := liveHosts(t, alpha); got != "alpha beta" {
		t.Errorf("live hosts: %q", got)
	}
	_, err := client(beta).List(t.Context(), connect.NewRequest(&trellisv1.ListRequest{}))
	if err == nil || !strings.Contains(err.Error(), "ask a host that has the role vnp") {
		t.Errorf("list at a host without the role: %v", err)
	}
}

func TestHostWithoutAnAgent(t *testing.T) {
	m := newMachines(t)
	alpha := m.machine("alpha")
	mustStart(t, alpha)
	beta := m.machine("beta")
	// Such a host has nothing to listen for.
	text, err := os.ReadFile(beta.Settings.File)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "listen:") {
			lines = append(lines, line)
		}
	}
	lines = append(lines, "\nroles: [vnp, pip]\n")
	if err := os.WriteFile(beta.Settings.File, []byte(strings.Join(lines, "")), 0o600); err != nil {
		t.Fatal(err)
	}
	if beta.Settings, err = config.Read(beta.Settings.File); err != nil {
		t.Fatal(err)
	}
	mustStart(t, beta)
	if got := liveHosts(t, beta); got != "alpha" {
		t.Errorf("live hosts: %q", got)
	}
	if _, err := client(beta).List(t.Context(), connect.NewRequest(&trellisv1.ListRequest{})); err != nil {
		t.Error(err)
	}
}

func TestHostKeepsItsName(t *testing.T) {
	c := place(t)
	c.Settings = &config.Config{File: "trellis.yaml", Host: "alpha", Roles: config.Alone().Roles}
	if err := os.MkdirAll(c.StateDir, 0o700); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if name, err := c.host(); err != nil || name != "alpha" {
			t.Errorf("name %q, %v", name, err)
		}
		if err := c.rememberIdentity("alpha", ""); err != nil {
			t.Fatal(err)
		}
	}
	c.Settings.Host = "beta"
	if name, err := c.host(); err == nil || !strings.Contains(err.Error(), `is "alpha" in the store`) {
		t.Errorf("renamed to %q, %v", name, err)
	}
	c.Settings.Host = ""
	if name, err := c.host(); err != nil || name != "alpha" {
		t.Errorf("name %q, %v", name, err)
	}
	one, err := c.id()
	if err != nil {
		t.Fatal(err)
	}
	if again, err := c.id(); err != nil || again != one {
		t.Errorf("id %q, then %q, %v", one, again, err)
	}
}

// What was wrong with a clock is not said any more once it is right, whenever it was
// found.
func TestClockThatIsRightAgainIsNotBlamed(t *testing.T) {
	st, err := store.Open(t.Context(), store.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	registration, err := st.Claim(t.Context(), store.Host{Name: "alpha", ID: "1"})
	if err != nil {
		t.Fatal(err)
	}
	defer registration.Close()
	s := &service{registration: registration, log: slog.New(slog.DiscardHandler)}
	for _, message := range []string{"the clock is behind", ""} {
		s.publishClock(message)
		if err := registration.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		if hosts, err := st.Hosts(t.Context()); err != nil || hosts["alpha"].Message != message {
			t.Errorf("host says %q, %v", hosts["alpha"].Message, err)
		}
	}
}

func TestAddressInUseIsNamed(t *testing.T) {
	m := newMachines(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	err = Background(m.machine("alpha", "metrics: "+l.Addr().String()))
	if err == nil || !strings.Contains(err.Error(), "offer metrics at") || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("error %v", err)
	}
}
