package store

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"trellis/internal/pki"
	"trellis/internal/plan"
)

// quietly keeps what is logged on purpose out of a test's output.
var quietly = slog.New(slog.NewTextHandler(io.Discard, nil))

// authority makes a certificate authority and gives hosts' certificates.
func authority(t testing.TB) func(name string) pki.Files {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "pki")
	if _, err := pki.NewCA(dir, false); err != nil {
		t.Fatal(err)
	}
	return func(name string) pki.Files {
		made, err := pki.NewHost(dir, pki.Identity{Name: name, Addresses: []string{"127.0.0.1"}}, false)
		if err != nil {
			t.Fatal(err)
		}
		return made.Files
	}
}

// freePort gives an address of the loopback that nobody listens at, and that the
// kernel does not give to a connection meanwhile: those are from 32768 up.
func freePort(t testing.TB) string {
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

// mustOpen opens a store that the test closes in time, or at its end.
func mustOpen(t testing.TB, o Options) *Store {
	t.Helper()
	if o.Log == nil {
		o.Log = quietly
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	s, err := Open(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// two gives a store that listens and one that is connected to it.
func two(t *testing.T) (near, far *Store, reopen func() *Store) {
	t.Helper()
	certificate := authority(t)
	o := Options{Dir: t.TempDir(), Listen: freePort(t), TLS: certificate("alpha")}
	near = mustOpen(t, o)
	far = mustOpen(t, Options{Endpoints: []string{"https://" + o.Listen}, TLS: certificate("beta")})
	return near, far, func() *Store { return mustOpen(t, o) }
}

func TestHostsShareAStore(t *testing.T) {
	near, far, _ := two(t)
	watch := far.WatchPlans(t.Context(), "h")
	wantPlans(t, watch, "synced")
	rec, plans := record("a", 3, 1, 65536)
	mustPut(t, near, rec, plans)
	wantPlans(t, watch, "a 1")
	read, err := far.VNet(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	read.Generation = 2
	mustPut(t, far, read, map[string]*plan.Plan{"h": {VNet: "a", Generation: 2}})
	wantPlans(t, watch, "a 2")
	rec.Generation = 3
	if err := near.Put(t.Context(), rec, plans); !errors.Is(err, ErrConflict) {
		t.Errorf("put of a record that the other host has changed: %v", err)
	}
	mustRegister(t, near, host("alpha", "1"))
	mustRegister(t, far, host("beta", "2"))
	hosts, err := near.Hosts(t.Context())
	if err != nil || !hosts["alpha"].Alive || !hosts["beta"].Alive {
		t.Errorf("hosts %+v, %v", hosts, err)
	}
}

func TestLargePlanGoesToAStoreOfOurs(t *testing.T) {
	_, far, _ := two(t)
	rec, plans := record("a", 1, 1, 0)
	plans["h"].Hosts = noise(8 << 20) // etcd's default is 1.5 MiB
	mustPut(t, far, rec, plans)
	p, err := far.Plan(t.Context(), "h", "a")
	if err != nil || len(p.Hosts) != 8<<20 {
		t.Errorf("read %d bytes, %v", len(p.Hosts), err)
	}
}

func TestFullDiskElsewhereRefusesWritesAndAllowsRemoval(t *testing.T) {
	disk := smallDisk(t, "160")
	certificate := authority(t)
	o := Options{Dir: filepath.Join(disk, "etcd"), Listen: freePort(t), TLS: certificate("alpha")}
	near := mustOpen(t, o)
	far := mustOpen(t, Options{Endpoints: []string{"https://" + o.Listen}, TLS: certificate("beta")})
	rec, plans := record("a", 5, 1, 0)
	mustPut(t, far, rec, plans)
	filler := fill(t, disk, 2<<20)
	if !near.publishFull(true) {
		t.Fatal("the store does not report it")
	}
	b, bPlans := record("b", 5, 1, 0)
	err := far.Put(t.Context(), b, bPlans)
	if !errors.Is(err, ErrNoSpace) {
		t.Errorf("put while the disk elsewhere is full: %v", err)
	}
	wantSentence(t, err, "the disk of the store at https://127.0.0.1:", "is full", "make room on that host")
	rec.State, rec.Generation = Removing, 2
	mustPut(t, far, rec, map[string]*plan.Plan{"h": {VNet: "a", Generation: 2}})
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if !near.publishFull(false) {
		t.Fatal("the store does not report it")
	}
	mustPut(t, far, b, bPlans)
	if near.Err() != nil {
		t.Error(near.Err())
	}
}

// A store that was closed while its disk was full does not say so for ever.
func TestFullDiskIsForgottenOnceThereIsRoom(t *testing.T) {
	near, far, reopen := two(t)
	if !near.publishFull(true) {
		t.Fatal("the store does not report it")
	}
	if err := near.Close(); err != nil {
		t.Fatal(err)
	}
	reopen()
	var err error
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if err = far.checkRemoteSpace(t.Context()); err == nil {
			return
		}
	}
	t.Errorf("with room on the disk: %v", err)
}

// A store that is closed in order has nothing to complain of.
func TestClosingIsNoError(t *testing.T) {
	certificate := authority(t)
	var log bytes.Buffer
	o := Options{Dir: t.TempDir(), Listen: freePort(t), TLS: certificate("alpha"), Log: slog.New(slog.NewTextHandler(&log, nil))}
	s, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	mustOpen(t, Options{Endpoints: []string{"https://" + o.Listen}, TLS: certificate("beta")})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(log.String(), "level=ERROR") || strings.Contains(log.String(), "level=WARN") {
		t.Errorf("it is said:\n%s", &log)
	}
}

// etcd listens at numbers alone; a name in the configuration stands for one.
func TestStoreListensByName(t *testing.T) {
	certificate := authority(t)
	_, port, _ := net.SplitHostPort(freePort(t))
	s := mustOpen(t, Options{Dir: t.TempDir(), Listen: "localhost:" + port, TLS: certificate("alpha")})
	for _, u := range s.server.Config().ListenClientUrls {
		if net.ParseIP(u.Hostname()) == nil {
			t.Errorf("etcd is to listen at %s", u.Host)
		}
	}
}

// TestExpiredServerIsNamed connects to a server whose certificate has run out.
func TestExpiredServerIsNamed(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	self := &x509.Certificate{
		SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(-time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, self, self, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	if self, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		if c, err := l.Accept(); err == nil {
			_ = c.(*tls.Conn).Handshake() // fails
			c.Close()
		}
	}()
	pool := x509.NewCertPool()
	pool.AddCert(self)
	a := newProber([]string{"https://" + l.Addr().String()}, &tls.Config{RootCAs: pool}, time.Now)
	wantSentence(t, a.rejection(t.Context()), "is not good now", "is after", "renew it there")
}

// closeInTime closes a store that others are connected to, and gives how long that took.
//
// A stream that opens in the moment that etcd's HTTP server is told to end is waited
// for, 5.2 s (stopServers of etcd's embed/etcd.go); no others are.
func closeInTime(t *testing.T, s *Store) time.Duration {
	t.Helper()
	begin := time.Now()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	d := time.Since(begin)
	t.Logf("closed in %v with others connected", d)
	if d > 8*time.Second {
		t.Errorf("the store took %v to close", d)
	}
	return d
}

func TestCloseDoesNotWaitForOthers(t *testing.T) {
	t.Parallel()
	const tries = 4
	for range tries {
		near, far, _ := two(t)
		wantPlans(t, far.WatchPlans(t.Context(), "h"), "synced")
		mustRegister(t, far, host("beta", "2"))
		if closeInTime(t, near) < 4*time.Second {
			return
		}
	}
	t.Errorf("a store that others are connected to took more than 4 s to close, %d times of %d", tries, tries)
}

func TestStoreThatGoesAwayComesBack(t *testing.T) {
	t.Parallel()
	near, far, reopen := two(t)
	rec, plans := record("a", 1, 1, 0)
	mustPut(t, near, rec, plans)
	watch := far.WatchPlans(t.Context(), "h")
	wantPlans(t, watch, "a 1", "synced")
	hosts := far.WatchHosts(t.Context())
	r := mustRegister(t, far, host("beta", "2"))
	closeInTime(t, near)
	// Calls fail within seconds, with one sentence.
	read := func() error { _, err := far.VNet(t.Context(), "a"); return err }
	write := func() error {
		rec, plans := record("b", 1, 1, 0)
		return far.Put(t.Context(), rec, plans)
	}
	for name, call := range map[string]func() error{"read": read, "write": write} {
		begin := time.Now()
		err := call()
		if !errors.Is(err, ErrUnavailable) {
			t.Errorf("%s of a store that is away: %v", name, err)
		}
		wantSentence(t, err, "the store at https://127.0.0.1:", "does not answer", "what runs goes on", "changes are refused until it is back")
		if d := time.Since(begin); d > callTimeout+time.Second {
			t.Errorf("%s failed only after %v", name, d)
		}
	}
	r.Update(func(h *Host) { h.MTU = 1300 })
	time.Sleep(2 * hostTTL)
	select {
	case <-far.Done():
		t.Fatalf("the store has ended: %v", far.Err())
	case <-r.Done():
		t.Fatalf("the registration has ended: %v", r.Err())
	case e := <-watch:
		t.Fatalf("event %v of a store that is away", e)
	default:
	}
	// Everything goes on when it is back.
	near = reopen()
	rec, err := near.VNet(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	rec.Generation = 2
	mustPut(t, near, rec, map[string]*plan.Plan{"h": {VNet: "a", Generation: 2}})
	wantPlans(t, watch, "a 2")
	eventually(t, far, 15*time.Second, "beta", func(h HostState) bool { return h.Alive && h.MTU == 1300 })
	for e := next(t, hosts); e.Host == nil || !e.Host.Alive || e.Host.MTU != 1300; e = next(t, hosts) {
	}
	if err := write(); err != nil {
		t.Error(err)
	}
}

func TestStrangersAreRefused(t *testing.T) {
	certificate := authority(t)
	at := freePort(t)
	mustOpen(t, Options{Dir: t.TempDir(), Listen: at, TLS: certificate("alpha")})
	endpoint := []string{"https://" + at}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	refused := func(o Options, words ...string) {
		t.Helper()
		o.Log = quietly
		begin := time.Now()
		s, err := Open(ctx, o)
		if err == nil {
			s.Close()
		}
		wantSentence(t, err, words...)
		if d := time.Since(begin); d > 10*time.Second {
			t.Errorf("refused only after %v", d)
		}
	}
	other := authority(t)("gamma")
	refused(Options{Endpoints: endpoint, TLS: other}, "another authority")
	// One who trusts the store, with a certificate that the store does not trust.
	mixed := pki.Files{CA: certificate("beta").CA, Cert: other.Cert, Key: other.Key}
	refused(Options{Endpoints: endpoint, TLS: mixed}, "was not made by the authority")
	if err := anonymous(t, at, certificate("eta").CA); err == nil {
		t.Error("the store answers a host without a certificate")
	}
	refused(Options{Endpoints: []string{"http://" + at}, TLS: certificate("delta")}, "not https")
	refused(Options{Endpoints: []string{at}, TLS: certificate("epsilon")}, "https://HOST:PORT")
	_, port, _ := net.SplitHostPort(at)
	refused(Options{Endpoints: []string{"https://localhost:" + port}, TLS: certificate("zeta")}, "for another name or address", "--address")
	refused(Options{Dir: t.TempDir(), Listen: at, TLS: certificate("iota")}, "cannot listen at", at)
	refused(Options{Dir: t.TempDir(), Listen: "here", TLS: certificate("theta")}, "HOST:PORT")
}

// anonymous asks an etcd for its version without a certificate.
func anonymous(t *testing.T, at, ca string) error {
	t.Helper()
	text, err := os.ReadFile(ca)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		t.Fatal("no authority")
	}
	a := newProber([]string{"https://" + at}, &tls.Config{RootCAs: pool}, time.Now)
	_, _, err = a.probe(t.Context(), a.endpoints[0])
	if err != nil && !strings.Contains(fmt.Sprint(explainTLS(a.endpoints[0], err)), "refuses this host's certificate") {
		t.Errorf("refused by %v", err)
	}
	return err
}

func TestStoreThatIsNotThereIsWaitedFor(t *testing.T) {
	t.Parallel()
	certificate := authority(t)
	at := freePort(t)
	beta := Options{Endpoints: []string{"https://" + at}, TLS: certificate("beta"), Log: quietly}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	begin := time.Now()
	_, err := Open(ctx, beta)
	if !errors.Is(err, ErrUnavailable) {
		t.Errorf("open of a store that is not there: %v", err)
	}
	wantSentence(t, err, at, "does not answer", "connection refused", "goes on")
	if d := time.Since(begin); d > 5*time.Second {
		t.Errorf("gave up only after %v", d)
	}
	answered := make(chan *Store)
	go func() {
		defer close(answered)
		if s, err := Open(t.Context(), beta); err != nil {
			t.Error(err)
		} else {
			answered <- s
		}
	}()
	time.Sleep(time.Second)
	mustOpen(t, Options{Dir: t.TempDir(), Listen: at, TLS: certificate("alpha")})
	if s, ok := <-answered; ok {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestClocksAreCompared(t *testing.T) {
	certificate := authority(t)
	at := freePort(t)
	mustOpen(t, Options{Dir: t.TempDir(), Listen: at, TLS: certificate("alpha")})
	beta := Options{Endpoints: []string{"https://" + at}, TLS: certificate("beta"), Log: quietly}
	off := func(d time.Duration) func() time.Time { return func() time.Time { return time.Now().Add(d) } }
	s := mustOpen(t, beta)
	if ahead, known := s.ClockDifference(t.Context()); !known || ahead.Abs() > clockWarn {
		t.Errorf("one clock differs from itself by %v, %v", ahead, known)
	}
	if m := s.ClockMessage(t.Context()); m != "" {
		t.Errorf("message about one clock: %q", m)
	}
	beta.now = off(-7 * time.Second)
	s = mustOpen(t, beta)
	if m := s.ClockMessage(t.Context()); !strings.Contains(m, "behind the store's") {
		t.Errorf("message about a clock that is behind: %q", m)
	}
	beta.now = off(time.Minute)
	_, err := Open(t.Context(), beta)
	wantSentence(t, err, "ahead of the store's", "NTP")
}

func TestNewerStoreIsRefused(t *testing.T) {
	near, _, _ := two(t)
	if _, err := near.client.Put(t.Context(), protocolKey, fmt.Sprint(Protocol+1)); err != nil {
		t.Fatal(err)
	}
	wantSentence(t, near.checkProtocol(t.Context()), "newer trellis", "run the newer version")
}

// cluster runs an external etcd of three members with etcd's own limits.
func cluster(t *testing.T) (endpoints []string, kill func(int), certificate func(string) pki.Files) {
	t.Helper()
	certificate = authority(t)
	files := certificate("member")
	secure := transport.TLSInfo{CertFile: files.Cert, KeyFile: files.Key, TrustedCAFile: files.CA, ClientCertAuth: true}
	var initial []string
	var configs []*embed.Config
	dir := t.TempDir()
	for i := range 3 {
		c := embed.NewConfig()
		c.Name = fmt.Sprintf("m%d", i)
		c.Dir = filepath.Join(dir, c.Name)
		peer, client := url.URL{Scheme: "https", Host: freePort(t)}, url.URL{Scheme: "https", Host: freePort(t)}
		c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
		c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
		c.ClientTLSInfo, c.PeerTLSInfo = secure, secure
		c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
		initial = append(initial, c.Name+"="+peer.String())
		endpoints = append(endpoints, client.String())
		configs = append(configs, c)
	}
	members := make([]*embed.Etcd, 3)
	for i, c := range configs {
		c.InitialCluster = strings.Join(initial, ",")
		m, err := embed.StartEtcd(c)
		if err != nil {
			t.Fatal(err)
		}
		members[i] = m
	}
	kill = func(i int) {
		if members[i] != nil {
			members[i].Close()
			members[i] = nil
		}
	}
	t.Cleanup(func() {
		for i := range members {
			kill(i)
		}
	})
	for _, m := range members {
		select {
		case <-m.Server.ReadyNotify():
		case <-time.After(30 * time.Second):
			t.Fatal("the cluster is not ready")
		}
	}
	return endpoints, kill, certificate
}

func TestExternalCluster(t *testing.T) {
	t.Parallel()
	endpoints, kill, certificate := cluster(t)
	s := mustOpen(t, Options{Endpoints: endpoints, TLS: certificate("alpha")})
	other := mustOpen(t, Options{Endpoints: endpoints, TLS: certificate("beta")})
	watch := other.WatchPlans(t.Context(), "h")
	wantPlans(t, watch, "synced")
	r := mustRegister(t, s, host("alpha", "1"))

	// etcd's own limits bound neither a plan's size nor the number of hosts.
	rec, plans := record("large", 1, 1, 65536)
	plans["h"].Hosts = noise(9 << 20)
	for i := range 400 {
		name := fmt.Sprintf("h%d", i)
		plans[name] = &plan.Plan{VNet: "large", Generation: 1, Hosts: noise(i << 6)}
	}
	mustPut(t, s, rec, plans)
	if e := next(t, watch); e.VNet != "large" || e.Err != nil || len(e.Plan.Hosts) != 9<<20 {
		t.Errorf("event of a large plan: %v, %v", e.VNet, e.Err)
	}
	for _, host := range []string{"h", "h7", "h399"} {
		if p, err := other.Plan(t.Context(), host, "large"); err != nil || !bytes.Equal(p.Hosts, plans[host].Hosts) {
			t.Errorf("plan of %s: %v", host, err)
		}
	}
	again := *rec
	again.Generation = 2
	next2 := map[string]*plan.Plan{"h": {VNet: "large", Generation: 2, Hosts: noise(5 << 20)}}
	mustPut(t, other, &again, next2)
	wantPlans(t, watch, "large 2")
	lost := *rec // as it was read before
	lost.Generation = 3
	if err := s.Put(t.Context(), &lost, plans); !errors.Is(err, ErrConflict) {
		t.Errorf("put of what has changed: %v", err)
	}
	for _, key := range chunkKeys(t, s) {
		if of := chunksOf(planKey("h", "large")); strings.HasPrefix(key, of) && !strings.HasPrefix(key, of+chunkGeneration(2)) {
			t.Errorf("a chunk of the first generation stays: %s", key)
		}
	}
	if err := s.Forget(t.Context(), &again); err != nil {
		t.Fatal(err)
	}
	wantPlans(t, watch, "large gone")
	if left := chunkKeys(t, s); len(left) != 0 {
		t.Errorf("%d chunks after forgetting, %s the first", len(left), left[0])
	}

	// One member of three may go.
	kill(0)
	rec, plans = record("a", 1, 1, 131072)
	var err error
	for deadline := time.Now().Add(15 * time.Second); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		if err = s.Put(t.Context(), rec, plans); err == nil || !errors.Is(err, ErrUnavailable) && !errors.Is(err, ErrConflict) {
			break
		}
	}
	if err != nil && !errors.Is(err, ErrConflict) { // a lost answer is written all the same
		t.Fatal(err)
	}
	wantPlans(t, watch, "a 1")
	eventually(t, s, 10*time.Second, "alpha", func(h HostState) bool { return h.Alive })
	if r.Err() != nil {
		t.Errorf("the registration has ended: %v", r.Err())
	}

	// Two are too many: refused, not lost.
	kill(1)
	begin := time.Now()
	b, bPlans := record("b", 1, 1, 65536*2)
	err = s.Put(t.Context(), b, bPlans)
	if !errors.Is(err, ErrUnavailable) {
		t.Errorf("put to a cluster without a majority: %v", err)
	}
	wantSentence(t, err, "does not answer", "changes are refused")
	if d := time.Since(begin); d > callTimeout+time.Second {
		t.Errorf("refused only after %v", d)
	}
}

// chunkKeys lists the keys of all chunks.
func chunkKeys(t *testing.T, s *Store) (keys []string) {
	t.Helper()
	r, err := s.client.Get(t.Context(), chunkPrefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range r.Kvs {
		keys = append(keys, string(kv.Key))
	}
	return keys
}

func TestIsLeaderChanged(t *testing.T) {
	for _, err := range []error{rpctypes.ErrLeaderChanged, rpctypes.ErrGRPCLeaderChanged, fmt.Errorf("read: %w", rpctypes.ErrLeaderChanged)} {
		if !isLeaderChanged(err) {
			t.Errorf("%v (%T) is none", err, err)
		}
	}
	for _, err := range []error{nil, rpctypes.ErrNoLeader, context.Canceled} {
		if isLeaderChanged(err) {
			t.Errorf("%v is one", err)
		}
	}
}

func TestIsTransient(t *testing.T) {
	for err, want := range map[error]bool{
		nil: false, ErrUnavailable: true, ErrNoSpace: true, ErrConflict: true, ErrNotFound: false,
		context.Canceled: false, context.DeadlineExceeded: true, syscall.ENOSPC: true, syscall.EACCES: false,
		rpctypes.ErrTimeout: true, rpctypes.ErrNoLeader: true, rpctypes.ErrLeaderChanged: true, rpctypes.ErrGRPCNoSpace: true,
		rpctypes.ErrTooManyRequests: true, rpctypes.ErrPermissionDenied: false, rpctypes.ErrTooManyOps: false,
		status.Error(codes.Unavailable, "transport is closing"): true, errors.New("the value is damaged"): false,
		NotFound("there is no VNet x"): false,
	} {
		if err != nil {
			err = fmt.Errorf("forget VNet x: %w", err)
		}
		if IsTransient(err) != want {
			t.Errorf("%v: transient %v", err, !want)
		}
	}
}
