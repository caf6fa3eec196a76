package vnp

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"connectrpc.com/connect"

	"trellis/internal/agentapi"
	"trellis/internal/pip"
	"trellis/internal/store"
	"trellis/internal/vnet"
)

// invalid is an error about the request itself.
func invalid(format string, args ...any) error {
	return connect.NewError(connect.CodeInvalidArgument, fmt.Errorf(format, args...))
}

// fail gives an error the code that the API promises for its kind.
func (s *Service) fail(err error) error {
	if err == nil {
		return nil
	}
	var unreachable *agentapi.Unreachable
	var known *connect.Error
	// Of an error that wraps one with a code, clients see the wrapped one alone: here,
	// a bare "connection refused".
	if !errors.As(err, &unreachable) && errors.As(err, &known) {
		return err
	}
	code := s.code(err)
	if code == connect.CodeInternal {
		s.log.Error("request failed", "error", err)
	}
	return connect.NewError(code, err)
}

func (s *Service) code(err error) connect.Code {
	var broken vnet.Errors
	var rule vnet.Error
	var refused pip.Refused
	var unreachable *agentapi.Unreachable
	switch {
	case s.store.Err() != nil, errors.Is(err, store.ErrUnavailable):
		return connect.CodeUnavailable
	case errors.As(err, &broken), errors.As(err, &rule):
		return connect.CodeInvalidArgument
	case errors.As(err, &unreachable):
		return connect.CodeUnavailable
	case errors.Is(err, context.Canceled):
		return connect.CodeCanceled
	case errors.Is(err, context.DeadlineExceeded):
		return connect.CodeDeadlineExceeded
	case errors.Is(err, store.ErrNotFound):
		return connect.CodeNotFound
	case errors.As(err, &refused), errors.Is(err, pip.ErrRemoving):
		return connect.CodeFailedPrecondition
	case errors.Is(err, pip.ErrExhausted), errors.Is(err, store.ErrNoSpace):
		return connect.CodeResourceExhausted
	case errors.Is(err, store.ErrConflict):
		return connect.CodeAborted
	}
	return connect.CodeInternal
}

// record reads a VNet's record; where there is none, the error names the one with
// the nearest name.
func (s *Service) record(ctx context.Context, name string) (*store.VNetRecord, error) {
	rec, err := s.store.VNet(ctx, name)
	return rec, s.suggest(ctx, name, err)
}

// suggest turns the error about a VNet that is not there into one that names the
// nearest that is.
func (s *Service) suggest(ctx context.Context, name string, err error) error {
	if !errors.Is(err, store.ErrNotFound) {
		return err
	}
	names, e := s.store.Names(ctx)
	if e != nil || slices.Contains(names, name) {
		return err
	}
	if near := vnet.Nearest(name, names); near != "" {
		return store.NotFound("there is no VNet %q; did you mean %q?", name, near)
	}
	return err
}
