package pki

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"
)

// Files are the paths of what a substrate node shows and trusts.
type Files struct {
	CA   string // the authority's certificate
	Cert string // the node's own
	Key  string // of Cert
}

// Check reads the files, and refuses what no other node would accept: with one
// sentence, before anything is listened on or connected to.
func (f Files) Check() error {
	_, _, err := f.load()
	return err
}

// load gives the node's certificate and the authority's.
func (f Files) load() (*tls.Certificate, *x509.CertPool, error) {
	ca, err := readCertificate(f.CA)
	if err != nil {
		return nil, nil, err
	}
	if !ca.IsCA {
		return nil, nil, fmt.Errorf("%s is no certificate of an authority; name the ca.pem that `trellis cert ca` has made", f.CA)
	}
	certText, err := os.ReadFile(f.Cert)
	if err != nil {
		return nil, nil, fmt.Errorf("read the host's certificate: %w", err)
	}
	keyText, err := os.ReadFile(f.Key)
	if err != nil {
		return nil, nil, fmt.Errorf("read the host's key: %w", err)
	}
	pair, err := tls.X509KeyPair(certText, keyText)
	if err != nil {
		return nil, nil, fmt.Errorf("%s and %s are no certificate with its key (%s)", f.Cert, f.Key, strings.TrimPrefix(err.Error(), "tls: "))
	}
	if pair.Leaf.IsCA {
		return nil, nil, fmt.Errorf("%s is the authority's own certificate; make one for this host with `trellis cert host`", f.Cert)
	}
	pool := x509.NewCertPool()
	pool.AddCert(ca)
	rest := x509.NewCertPool()
	for _, der := range pair.Certificate[1:] {
		if c, err := x509.ParseCertificate(der); err == nil {
			rest.AddCert(c)
		}
	}
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth} {
		_, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: pool, Intermediates: rest, KeyUsages: []x509.ExtKeyUsage{usage}})
		if err != nil {
			return nil, nil, f.judge(pair.Leaf, err)
		}
	}
	return &pair, pool, nil
}

// judge words why a certificate would not be accepted.
func (f Files) judge(leaf *x509.Certificate, err error) error {
	var invalid x509.CertificateInvalidError
	if errors.As(err, &invalid) {
		switch now := time.Now(); {
		case invalid.Reason == x509.Expired && now.After(leaf.NotAfter):
			return fmt.Errorf("the certificate %s has run out on %s; make a new one with `trellis cert host --force`", f.Cert, leaf.NotAfter.Format(time.DateTime))
		case invalid.Reason == x509.Expired && now.Before(leaf.NotBefore):
			return fmt.Errorf("the certificate %s is good only from %s on; set the machine's clock", f.Cert, leaf.NotBefore.Format(time.DateTime))
		case invalid.Reason == x509.Expired:
			return fmt.Errorf("the authority %s has run out, or the machine's clock is wrong", f.CA)
		case invalid.Reason == x509.IncompatibleUsage:
			return fmt.Errorf("the certificate %s is not for both ends of a connection; make one with `trellis cert host`, or ask for client and server authentication", f.Cert)
		}
	}
	var unknown x509.UnknownAuthorityError
	if errors.As(err, &unknown) {
		return fmt.Errorf("the certificate %s was not made by the authority %s; all hosts need certificates of one authority", f.Cert, f.CA)
	}
	return fmt.Errorf("the certificate %s: %w", f.Cert, err)
}

func readCertificate(path string) (*x509.Certificate, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read a certificate: %w", err)
	}
	block, _ := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, fmt.Errorf("%s holds no certificate in PEM form", path)
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

// Config is the configuration of both ends of connections between hosts: each
// must show a certificate of the authority, a server one for the name or
// address that is dialled, or for ServerName where the caller sets that. A
// certificate that is renewed in its files is used from the next connection on;
// another authority needs a restart.
func (f Files) Config() (*tls.Config, error) {
	r, pool, err := f.reader()
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion:           tls.VersionTLS12, // what an etcd of others may be held to
		RootCAs:              pool,
		ClientCAs:            pool,
		ClientAuth:           tls.RequireAndVerifyClientCert,
		GetCertificate:       func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return r.pair(), nil },
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return r.pair(), nil },
	}, nil
}

func (f Files) reader() (*reader, *x509.CertPool, error) {
	pair, pool, err := f.load()
	if err != nil {
		return nil, nil, err
	}
	r := &reader{files: f, good: pair}
	r.certText, _ = os.ReadFile(f.Cert)
	return r, pool, nil
}

// reader gives the certificate as it is in its files now.
type reader struct {
	files Files

	mu       sync.Mutex
	certText []byte
	good     *tls.Certificate // the last pair that belonged together
}

func (r *reader) pair() *tls.Certificate {
	r.mu.Lock()
	defer r.mu.Unlock()
	text, err := os.ReadFile(r.files.Cert)
	if err != nil || bytes.Equal(text, r.certText) {
		return r.good
	}
	// While the two files are replaced they do not belong together.
	if pair, err := tls.LoadX509KeyPair(r.files.Cert, r.files.Key); err == nil {
		r.good, r.certText = &pair, text
	}
	return r.good
}
