package vnp

import (
	"context"
	"errors"
	"fmt"

	"connectrpc.com/connect"

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
	var known *connect.Error
	if errors.As(err, &known) {
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
	var silent *Unreachable
	switch {
	case s.store.Err() != nil, errors.Is(err, store.ErrAway):
		return connect.CodeUnavailable
	case errors.As(err, &broken), errors.As(err, &rule):
		return connect.CodeInvalidArgument
	case errors.As(err, &silent):
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
