package pki

import (
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func mustCA(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "pki")
	if _, err := NewCA(dir, false); err != nil {
		t.Fatal(err)
	}
	return dir
}

func mustHost(t *testing.T, dir, name string, addresses ...string) Files {
	t.Helper()
	i, err := NewHost(dir, Identity{Name: name, Addresses: addresses}, false)
	if err != nil {
		t.Fatal(err)
	}
	return i.Files
}

func TestCertificatesSayWhoseTheyAre(t *testing.T) {
	dir := mustCA(t)
	f := mustHost(t, dir, "alpha", "192.0.2.1", "2001:db8::1", "alpha.example")
	if err := f.Check(); err != nil {
		t.Fatal(err)
	}
	c, err := readCertificate(f.Cert)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"alpha", "ALPHA", "alpha.example", "192.0.2.1", "2001:db8::1"} {
		if err := c.VerifyHostname(name); err != nil {
			t.Error(err)
		}
	}
	if err := c.VerifyHostname("beta"); err == nil {
		t.Error("the certificate is beta's as well")
	}
	if left := time.Until(c.NotAfter); left < hostLife-time.Minute || left > hostLife {
		t.Errorf("good for %v", left)
	}
	if since := time.Since(c.NotBefore); since < early {
		t.Errorf("good since %v, which a clock that is behind does not accept", since)
	}
	for _, path := range []string{f.CA, f.Cert, f.Key, filepath.Join(dir, caKeyFile)} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", path, info.Mode(), err)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 4 {
		t.Errorf("files %v, %v", entries, err)
	}
}

func TestNothingIsOverwrittenUnlessForced(t *testing.T) {
	dir := mustCA(t)
	f := mustHost(t, dir, "alpha", "192.0.2.1")
	before, err := os.ReadFile(f.Cert)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := NewCA(dir, false); !errors.Is(err, ErrExists) {
		t.Errorf("a second authority: %v", err)
	}
	if _, err := NewHost(dir, Identity{Name: "alpha"}, false); !errors.Is(err, ErrExists) {
		t.Errorf("a second certificate: %v", err)
	}
	if after, _ := os.ReadFile(f.Cert); string(after) != string(before) {
		t.Error("the refused certificate was written")
	}
	if _, err := NewHost(dir, Identity{Name: "alpha", Roles: []string{"agent"}}, true); err != nil {
		t.Fatal(err)
	}
	i, err := NewHost(dir, Identity{Name: "alpha"}, true)
	if err != nil {
		t.Fatal(err)
	}
	if c, err := readCertificate(f.Cert); err != nil || !slices.Equal(c.Subject.OrganizationalUnit, []string{"agent"}) {
		t.Errorf("the renewed certificate has the roles %v, %v", c.Subject.OrganizationalUnit, err)
	}
	if len(i.Addrs) != 1 || i.Addrs[0].String() != "192.0.2.1" || len(i.Names) != 1 {
		t.Errorf("the renewed certificate is for %v and %v", i.Names, i.Addrs)
	}
	if err := i.Files.Check(); err != nil {
		t.Error(err)
	}
}

// The certificate of a host "ca-key" would stand in the place of the authority's key.
func TestNoCertificateReplacesAKey(t *testing.T) {
	dir := mustCA(t)
	f := mustHost(t, dir, "alpha")
	for _, name := range []string{"ca-key", "alpha-key"} {
		if _, err := NewHost(dir, Identity{Name: name}, true); err == nil || !strings.Contains(err.Error(), "files of keys") {
			t.Errorf("a host %s: %v", name, err)
		}
	}
	if err := f.Check(); err != nil {
		t.Error(err)
	}
	mustHost(t, dir, "beta") // the authority's key is what it was
}

func TestBadRequestsAreRefused(t *testing.T) {
	dir := mustCA(t)
	for name, do := range map[string]func() error{
		"no authority":    func() error { _, err := NewHost(t.TempDir(), Identity{Name: "alpha"}, false); return err },
		"name of no host": func() error { _, err := NewHost(dir, Identity{Name: "../alpha"}, false); return err },
		"the authority's": func() error { _, err := NewHost(dir, Identity{Name: "ca"}, false); return err },
		"address and port": func() error {
			_, err := NewHost(dir, Identity{Name: "alpha", Addresses: []string{"192.0.2.1:80"}}, false)
			return err
		},
		"role of no host": func() error {
			_, err := NewHost(dir, Identity{Name: "alpha", Roles: []string{"vpn"}}, false)
			return err
		},
		"prefix": func() error {
			_, err := NewHost(dir, Identity{Name: "alpha", Addresses: []string{"192.0.2.1/24"}}, false)
			return err
		},
	} {
		if err := do(); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 2 {
		t.Errorf("files %v, %v", entries, err)
	}
}

func TestUselessFilesAreNamed(t *testing.T) {
	dir := mustCA(t)
	good := mustHost(t, dir, "alpha")
	other := mustHost(t, mustCA(t), "alpha")
	old := hostUntil(t, dir, time.Now().Add(-time.Minute))
	garbage := filepath.Join(dir, "garbage")
	if err := os.WriteFile(garbage, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		files Files
		want  string
	}{
		"no authority":        {Files{filepath.Join(dir, "none"), good.Cert, good.Key}, "no such file"},
		"garbage":             {Files{garbage, good.Cert, good.Key}, "no certificate"},
		"host as authority":   {Files{good.Cert, good.Cert, good.Key}, "no certificate of an authority"},
		"other authority":     {Files{good.CA, other.Cert, other.Key}, "not made by the authority"},
		"key of another":      {Files{good.CA, good.Cert, other.Key}, "no certificate with its key"},
		"run out":             {old, "has run out"},
		"authority as a host": {Files{good.CA, good.CA, filepath.Join(dir, caKeyFile)}, "authority's own"},
	} {
		err := c.files.Check()
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// hostUntil makes a certificate that is good until then.
func hostUntil(t *testing.T, dir string, then time.Time) Files {
	t.Helper()
	ca, caKey, err := authority(dir)
	if err != nil {
		t.Fatal(err)
	}
	f := mustHost(t, dir, "old")
	c, err := readCertificate(f.Cert)
	if err != nil {
		t.Fatal(err)
	}
	c.NotBefore, c.NotAfter = then.Add(-time.Hour), then
	pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		t.Fatal(err)
	}
	if err := write(f, c, ca, pair.PrivateKey.(*ecdsa.PrivateKey), caKey); err != nil {
		t.Fatal(err)
	}
	return f
}

// greet connects to a listener with our files and exchanges a byte.
func greet(t *testing.T, server, client Files, name string) error {
	t.Helper()
	cc := mustConfig(t, client)
	cc.ServerName = name
	return handshake(t, mustConfig(t, server), cc)
}

func mustConfig(t *testing.T, f Files) *tls.Config {
	t.Helper()
	c, err := f.Config()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func handshake(t *testing.T, sc, cc *tls.Config) error {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", sc)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		if c, err := l.Accept(); err == nil {
			_, _ = io.WriteString(c, "x")
			c.Close()
		}
	}()
	c, err := tls.DialWithDialer(&net.Dialer{Timeout: 5 * time.Second}, "tcp", l.Addr().String(), cc)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.Read(make([]byte, 1))
	return err
}

func TestOnlyHostsOfTheAuthorityGetIn(t *testing.T) {
	dir := mustCA(t)
	alpha, beta := mustHost(t, dir, "alpha", "127.0.0.1"), mustHost(t, dir, "beta")
	stranger := mustHost(t, mustCA(t), "beta")
	if err := greet(t, alpha, beta, "alpha"); err != nil {
		t.Errorf("beta at alpha: %v", err)
	}
	if err := greet(t, alpha, beta, ""); err != nil {
		t.Errorf("beta at alpha by address: %v", err)
	}
	if err := greet(t, alpha, beta, "gamma"); err == nil {
		t.Error("alpha was taken for gamma")
	}
	if err := greet(t, stranger, beta, "beta"); err == nil {
		t.Error("beta has trusted a server of another authority")
	}
	sc := mustConfig(t, alpha)
	pool := x509.NewCertPool()
	ca, err := readCertificate(alpha.CA)
	if err != nil {
		t.Fatal(err)
	}
	pool.AddCert(ca)
	if err := handshake(t, sc, &tls.Config{RootCAs: pool, ServerName: "alpha"}); err == nil {
		t.Error("a client without a certificate got in")
	}
	pair, err := tls.LoadX509KeyPair(stranger.Cert, stranger.Key)
	if err != nil {
		t.Fatal(err)
	}
	strange := &tls.Config{RootCAs: pool, ServerName: "alpha", GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }}
	if err := handshake(t, sc, strange); err == nil {
		t.Error("a client of another authority got in")
	}
}

func TestRenewedCertificateIsUsedWithoutRestart(t *testing.T) {
	dir := mustCA(t)
	alpha, beta := mustHost(t, dir, "alpha"), mustHost(t, dir, "beta")
	sc, cc := mustConfig(t, alpha), mustConfig(t, beta)
	cc.ServerName = "alpha.example"
	if err := handshake(t, sc, cc); err == nil {
		t.Fatal("alpha has a name that it was not given")
	}
	if _, err := NewHost(dir, Identity{Name: "alpha", Addresses: []string{"alpha.example"}}, true); err != nil {
		t.Fatal(err)
	}
	if err := handshake(t, sc, cc); err != nil {
		t.Errorf("after the renewal: %v", err)
	}
	if err := os.WriteFile(alpha.Cert, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := handshake(t, sc, cc); err != nil {
		t.Errorf("while the file is written: %v", err)
	}
}
