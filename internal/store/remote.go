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
	// reopenInterval is the pause between two attempts to open the store.
	reopenInterval = 500 * time.Millisecond
)

// ErrUnavailable is returned when a store that is elsewhere does not answer. What was
// asked for may have been carried out all the same, where the answer was lost.
var ErrUnavailable = errors.New("the store does not answer")

// sentence is an error that is of a kind, and does not say the kind again.
type sentence struct {
	text string
	kind error
}

func (e sentence) Error() string        { return e.text }
func (e sentence) Is(target error) bool { return target == e.kind }

// unavailable is the ErrAway of this store.
func (s *Store) unavailable() error {
	return sentence{s.where + " does not answer; what runs goes on, changes are refused until it is back", ErrUnavailable}
}

// noteAnswer notes whether the store has answered, and logs when that changes.
func (s *Store) noteAnswer(answered bool) {
	if s.prober == nil || !s.answered.Load() || s.unanswered.Swap(!answered) == !answered {
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
		Logger:               etcdLogger(s.life, s.log, s.fail),
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
	s.prober = newProber(o.Endpoints, config, s.now)
	return s.waitForAnswer(ctx)
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

// waitForAnswer returns when the store answers. Until ctx ends it is asked again, unless
// it answers that it will have nothing to do with this host.
func (s *Store) waitForAnswer(ctx context.Context) error {
	for reported := false; ; reported = true {
		// etcd's client does not tell why a connection fails.
		if refusal := s.prober.rejection(ctx); refusal != nil {
			return refusal
		}
		if why := s.prober.lastFailure(); why != "" && !reported {
			s.log.Warn(s.where+" does not answer yet; trying on", "error", why)
		}
		_, err := s.Revision(ctx)
		if err == nil {
			s.answered.Store(true)
			return s.checkClock(ctx)
		}
		if ctx.Err() == nil && !errors.Is(err, ErrUnavailable) {
			return fmt.Errorf("open %s: %w", s.where, err)
		}
		select {
		case <-time.After(reopenInterval):
		case <-ctx.Done():
			why := s.prober.lastFailure()
			if why == "" {
				why = "its cluster has no leader"
			}
			return sentence{fmt.Sprintf("%s does not answer (%s); start it, or name another in the configuration: what runs on this machine goes on", s.where, why), ErrUnavailable}
		}
	}
}

// isUnavailable tells whether an error of etcd's means that nobody was there to answer.
func isUnavailable(err error) bool {
	if errors.Is(err, ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) {
		return true
	}
	var etcd rpctypes.EtcdError
	if errors.As(err, &etcd) {
		return etcd.Code() == codes.Unavailable || etcd.Code() == codes.DeadlineExceeded
	}
	code := status.Code(err)
	return code == codes.Unavailable || code == codes.DeadlineExceeded
}

// isLeaderChanged tells whether a read was given up since another member leads now.
func isLeaderChanged(err error) bool {
	return errors.Is(err, rpctypes.ErrLeaderChanged) || errors.Is(err, rpctypes.ErrGRPCLeaderChanged)
}

// IsTransient tells whether what failed may succeed when it is done again, with nothing
// else changed than what the store or its disk are at: it does not answer, is full,
// busy, without a leader, or somebody else was first.
func IsTransient(err error) bool {
	switch {
	case err == nil || errors.Is(err, context.Canceled) || errors.Is(err, ErrNotFound):
		return false
	case errors.Is(err, ErrConflict) || errors.Is(err, ErrNoSpace) || isNoSpace(err) || isUnavailable(err):
		return true
	}
	return errors.Is(err, rpctypes.ErrTooManyRequests) || errors.Is(err, rpctypes.ErrGRPCRequestTooManyRequests)
}

// isTooLarge tells whether etcd refuses a request for its size, or a server of
// etcd's connection for that of the message.
func isTooLarge(err error) bool {
	return errors.Is(err, rpctypes.ErrRequestTooLarge) || errors.Is(err, rpctypes.ErrTooManyOps) ||
		status.Code(err) == codes.ResourceExhausted && strings.Contains(err.Error(), "larger than max")
}
