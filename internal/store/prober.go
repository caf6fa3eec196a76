package store

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Differences between the machine's clock and the store's. Leases do not depend
// on them, since etcd alone counts their time; certificates do, and so do the
// times that hosts write into the store.
const (
	clockWarn   = 2 * time.Second  // a warning
	clockRefuse = 30 * time.Second // refused, at the start
	// clockGrain is how exact the measurement is: HTTP dates have whole seconds.
	clockGrain = time.Second
)

// prober asks etcd's members over HTTP, which etcd answers at the same port, for
// what its own protocol does not tell: why a connection is refused, and what
// time it is there.
type prober struct {
	endpoints []string
	http      *http.Client
	now       func() time.Time

	mu   sync.Mutex
	last error // of the last attempt
}

func newProber(endpoints []string, config *tls.Config, now func() time.Time) *prober {
	return &prober{endpoints: endpoints, now: now, http: &http.Client{
		Timeout:   pingTimeout,
		Transport: &http.Transport{TLSClientConfig: config.Clone(), DisableKeepAlives: true},
	}}
}

// probe gives the time at one endpoint, and ours at the same moment.
func (a *prober) probe(ctx context.Context, endpoint string) (there, here time.Time, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimRight(endpoint, "/")+"/version", nil)
	if err != nil {
		return there, here, err
	}
	begin := a.now()
	answer, err := a.http.Do(r)
	a.mu.Lock()
	a.last = err
	a.mu.Unlock()
	if err != nil {
		return there, here, err
	}
	defer answer.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(answer.Body, 1<<12))
	here = begin.Add(a.now().Sub(begin) / 2)
	there, err = http.ParseTime(answer.Header.Get("Date"))
	if err != nil {
		return there, here, fmt.Errorf("%s sends no date", endpoint)
	}
	return there.Add(clockGrain / 2), here, nil
}

// rejection says why no endpoint will have anything to do with this host; nil
// where one might, once it answers.
func (a *prober) rejection(ctx context.Context) error {
	var refused error
	for _, e := range a.endpoints {
		_, _, err := a.probe(ctx, e)
		if err == nil {
			return nil
		}
		why := explainTLS(e, err)
		if why == nil {
			return nil
		}
		refused = why
	}
	return refused
}

// lastFailure words why the last attempt had no answer; empty where it had one.
func (a *prober) lastFailure() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var op *net.OpError
	switch {
	case a.last == nil:
		return ""
	case errors.As(a.last, &op) && !op.Timeout():
		return innermost(op.Err)
	}
	return "timeout"
}

// explainTLS words the error of a connection that failed for a certificate; nil
// for any other.
func explainTLS(endpoint string, err error) error {
	at := "the store at " + endpoint
	var (
		theirs  *tls.CertificateVerificationError
		ours    *net.OpError
		name    x509.HostnameError
		invalid x509.CertificateInvalidError
		unknown x509.UnknownAuthorityError
		alert   tls.AlertError
		record  tls.RecordHeaderError
	)
	switch {
	case errors.As(err, &theirs) && errors.As(err, &name):
		return fmt.Errorf("%s has a certificate for another name or address (%s); make it one with --address for this one", at, name.Error())
	case errors.As(err, &theirs) && errors.As(err, &unknown):
		return fmt.Errorf("%s has a certificate of another authority than this host's `tls: ca`; all hosts need certificates of one authority", at)
	case errors.As(err, &theirs) && errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return fmt.Errorf("%s has a certificate that is not good now (%s); renew it there, or set this machine's clock", at, invalid.Detail)
	case errors.As(err, &theirs):
		return fmt.Errorf("%s has a certificate that is of no use: %w", at, theirs.Err)
	case errors.As(err, &ours) && ours.Op == "remote error", errors.As(err, &alert):
		return fmt.Errorf("%s refuses this host's certificate (%s); all hosts need certificates of one authority that have not run out", at, innermost(err))
	case errors.As(err, &record):
		return fmt.Errorf("%s does not speak TLS; start that etcd with --cert-file, --key-file, --client-cert-auth and --trusted-ca-file", at)
	}
	return nil
}

// innermost is the innermost part of an error's text.
func innermost(err error) string {
	text := err.Error()
	if i := strings.LastIndex(text, ": "); i >= 0 {
		return text[i+2:]
	}
	return text
}

// ClockDifference is how far the machine's clock is ahead of the store's, to
// about a second. Known is false where there is no other clock, or it cannot be read.
func (s *Store) ClockDifference(ctx context.Context) (ahead time.Duration, known bool) {
	if s.prober == nil {
		return 0, false
	}
	for _, e := range s.prober.endpoints {
		there, here, err := s.prober.probe(ctx, e)
		if err != nil {
			continue
		}
		return here.Sub(there).Round(time.Second / 10), true
	}
	return 0, false
}

// ClockMessage is the sentence about a clock that differs from the store's;
// empty where it is near enough, or it cannot be read.
func (s *Store) ClockMessage(ctx context.Context) string {
	ahead, known := s.ClockDifference(ctx)
	if !known || ahead.Abs() <= clockWarn {
		return ""
	}
	return clockSentence(ahead)
}

func clockSentence(ahead time.Duration) string {
	side := "ahead of"
	if ahead < 0 {
		side = "behind"
	}
	// Not more exact than it is known: the message only changes with it.
	return fmt.Sprintf("the machine's clock is %v %s the store's; have both set by NTP", ahead.Abs().Round(clockGrain), side)
}

// checkClock refuses a clock that is far off, and warns of one that is off.
func (s *Store) checkClock(ctx context.Context) error {
	ahead, known := s.ClockDifference(ctx)
	switch {
	case known && ahead.Abs() > clockRefuse:
		return fmt.Errorf("%s, start again then", clockSentence(ahead))
	case known && ahead.Abs() > clockWarn:
		s.log.Warn(clockSentence(ahead))
	}
	return nil
}
