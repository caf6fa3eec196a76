package container

import (
	"context"
	"errors"
	"syscall"

	"trellis/internal/vnet"
)

var errEarly = errors.New("container: this build has the interface only")

type Runtime struct{}
type Held struct{}
type Process struct{}

func New(cfg Config) (*Runtime, error)                                  { return nil, errEarly }
func (r *Runtime) Close() error                                         { return errEarly }
func (r *Runtime) Prepare(ctx context.Context, image string) error      { return errEarly }
func (r *Runtime) Start(ctx context.Context, s Spec) (*Held, error)     { return nil, errEarly }
func (h *Held) Pid() int                                                { return 0 }
func (h *Held) Release() error                                          { return errEarly }
func (h *Held) Abort()                                                  {}
func (r *Runtime) List(ctx context.Context) ([]State, error)            { return nil, errEarly }
func (r *Runtime) Remove(ctx context.Context, ids ...ID) error          { return errEarly }
func (r *Runtime) SetLimits(ctx context.Context, id ID, l Limits) error { return errEarly }
func (r *Runtime) SetServices(ctx context.Context, id ID, s []Service) error {
	return errEarly
}
func (r *Runtime) RestartService(ctx context.Context, id ID, name string) error { return errEarly }
func (r *Runtime) WriteFiles(ctx context.Context, id ID, files []vnet.File) error {
	return errEarly
}
func (r *Runtime) SetFingerprint(id ID, fp string) error { return errEarly }
func (r *Runtime) Exec(ctx context.Context, id ID, e ExecSpec) (*Process, error) {
	return nil, errEarly
}
func (r *Runtime) Stat(id ID) (Stats, error)               { return Stats{}, errEarly }
func (r *Runtime) Exited(s State) (<-chan struct{}, error) { return nil, errEarly }
func (r *Runtime) Sweep(ctx context.Context) error         { return errEarly }
func (p *Process) Wait() (int, error)                      { return 0, errEarly }
func (p *Process) Resize(rows, cols uint16) error          { return errEarly }
func (p *Process) Signal(sig syscall.Signal) error         { return errEarly }

// Digest is the digest of a list of services, for comparison with
// [State.ServicesDigest].
func Digest(s []Service) string { return "" }
