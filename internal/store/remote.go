package store

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Times of a store that is elsewhere.
const (
	// callTimeout is how long one operation may take before the store counts as
	// away; one that sends much has a second more for each bytesPerSecond.
	callTimeout    = 4 * time.Second
	bytesPerSecond = 1 << 20
	// pingAfter is how long a connection may be silent before it is probed (gRPC
	// allows no less), and pingTimeout how long what was sent, probes included,
	// may stay without an answer (gRPC sets it as TCP_USER_TIMEOUT, too).
	pingAfter   = 10 * time.Second
	pingTimeout = 3 * time.Second
	// redialAfter bounds the pause between two attempts to connect.
	redialAfter = time.Second
	// openAgain is the pause between two attempts to open the store.
	openAgain = 500 * time.Millisecond
)

// ErrAway is returned when a store that is elsewhere does not answer. What was
// asked for may have been carried out all the same, where the answer was lost.
var ErrAway = errors.New("the store does not answer")

// sentence is an error that is of a kind, and does not say the kind again.
type sentence struct {
	text string
	kind error
}

func (e sentence) Error() string        { return e.text }
func (e sentence) Is(target error) bool { return target == e.kind }

// away is the ErrAway of this store.
func (s *Store) away() error {
	return sentence{s.where + " does not answer; what runs goes on, changes are refused until it is back", ErrAway}
}

// heard notes whether the store has answered, and tells when that changes.
func (s *Store) heard(answered bool) {
	if s.asker == nil || !s.opened.Load() || s.silent.Swap(!answered) == !answered {
		return
	}
	if answered {
		s.log.Info(s.where + " answers again")
	} else {
		s.log.Warn(s.where + " does not answer; what runs goes on")
	}
}

// remote tells whether the store is elsewhere.
func (s *Store) remote() bool { return s.dir == "" }

// connect opens the store of others.
func (s *Store) connect(ctx context.Context, o Options) error {
	for _, e := range o.Endpoints {
		if err := checkEndpoint(e); err != nil {
			return err
		}
	}
	s.where = "the store at " + strings.Join(o.Endpoints, ", ")
	config, err := o.TLS.Config()
	if err != nil {
		return err
	}
	s.client, err = clientv3.New(clientv3.Config{
		Endpoints:            o.Endpoints,
		TLS:                  config,
		Context:              s.life,
		Logger:               etcdLogger(s.life, s.log, s.died),
		DialTimeout:          callTimeout,
		DialKeepAliveTime:    pingAfter,
		DialKeepAliveTimeout: pingTimeout,
		PermitWithoutStream:  true,
		MaxCallSendMsgSize:   maxRequest,
		// A proxy for the machine's way to the world is none to the substrate.
		DialOptions: []grpc.DialOption{grpc.WithNoProxy(), grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: redialAfter / 10, Multiplier: 1.6, Jitter: 0.2, MaxDelay: redialAfter},
			MinConnectTimeout: pingTimeout,
		})},
	})
	if err != nil {
		return fmt.Errorf("open %s: %w", s.where, err)
	}
	s.asker = newAsker(o.Endpoints, config, s.now)
	return s.await(ctx)
}

// checkEndpoint refuses what is no URL of an etcd over TLS.
func checkEndpoint(e string) error {
	u, err := url.Parse(e)
	switch {
	case err != nil || u.Host == "" || u.Port() == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.User != nil:
		return fmt.Errorf("%q is no address of a store; write https://HOST:PORT", e)
	case u.Scheme != "https":
		return fmt.Errorf("the store's address %q is not https; stores are reached over TLS only", e)
	}
	return nil
}

// await returns when the store answers. Until ctx ends it is asked again, unless
// it answers that it will have nothing to do with this host.
func (s *Store) await(ctx context.Context) error {
	for told := false; ; told = true {
		// etcd's client does not tell why a connection fails.
		if refusal := s.asker.refusal(ctx); refusal != nil {
			return refusal
		}
		if why := s.asker.silence(); why != "" && !told {
			s.log.Warn(s.where+" does not answer yet; trying on", "error", why)
		}
		_, err := s.Revision(ctx)
		if err == nil {
			s.opened.Store(true)
			return s.compareClocks(ctx)
		}
		if ctx.Err() == nil && !errors.Is(err, ErrAway) {
			return fmt.Errorf("open %s: %w", s.where, err)
		}
		select {
		case <-time.After(openAgain):
		case <-ctx.Done():
			why := s.asker.silence()
			if why == "" {
				why = "its cluster has no leader"
			}
			return sentence{fmt.Sprintf("%s does not answer (%s); start it, or name another in the configuration: what runs on this machine goes on", s.where, why), ErrAway}
		}
	}
}

// isAway tells whether an error of etcd's means that nobody was there to answer.
func isAway(err error) bool {
	if errors.Is(err, ErrAway) || errors.Is(err, context.DeadlineExceeded) {
		return true
	}
	var etcd rpctypes.EtcdError
	if errors.As(err, &etcd) {
		return etcd.Code() == codes.Unavailable || etcd.Code() == codes.DeadlineExceeded
	}
	code := status.Code(err)
	return code == codes.Unavailable || code == codes.DeadlineExceeded
}

// isTooLarge tells whether etcd refuses a request for its size, or a server of
// etcd's connection for that of the message.
func isTooLarge(err error) bool {
	return errors.Is(err, rpctypes.ErrRequestTooLarge) || errors.Is(err, rpctypes.ErrTooManyOps) ||
		status.Code(err) == codes.ResourceExhausted && strings.Contains(err.Error(), "larger than max")
}
