package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"trellis/internal/agent/reconcile"
	"trellis/internal/routing"
	"trellis/internal/substrate/container"
	"trellis/internal/vnet"
)

// reload brings other files, and other daemons and configuration of theirs, into a
// running node, without disturbing what stays the same.
func (r *runner) reload(ctx context.Context, s reconcile.Step) error {
	n := r.nodes[s.Node]
	id := r.id(s.Node)
	r.mu.Lock()
	have := r.seen.marks[s.Node]
	r.mu.Unlock()
	want, daemons := r.marks(n), n.Daemons.With(n.Files)
	todo := routing.Reload(have.Daemons, daemons)
	if todo.RestartNode {
		return errors.New("the change needs a new container: this is a defect, please report it") // Boot covers the software
	}
	todo = todo.Without(r.stopped(id)...)
	files := slices.Clone(todo.Files)
	changed := have.ChangedFiles(want)
	for _, f := range n.Files {
		planned := slices.ContainsFunc(todo.Files, func(g vnet.File) bool { return g.Path == f.Path }) // a daemon's
		if !planned && slices.Contains(changed, f.Path) {
			files = append(files, f)
		}
	}
	if err := r.a.containers.WriteFiles(ctx, id, files); err != nil {
		return err
	}
	if len(todo.Starts)+len(todo.Stops)+len(todo.Changes) > 0 {
		if err := r.a.containers.SetServices(ctx, id, services(n)); err != nil {
			return err
		}
	}
	restart := todo.Restarts
	for _, c := range todo.Commands {
		err := r.command(ctx, id, c.Argv)
		switch {
		case err == nil:
		case len(c.OrRestart) == 0 || ctx.Err() != nil:
			return err
		default:
			r.a.log.Info("daemons do not take a change while they run, and are restarted", "node", id.String(), "daemons", c.OrRestart, "err", err)
			for _, service := range c.OrRestart {
				if !slices.Contains(restart, service) {
					restart = append(restart, service)
				}
			}
		}
	}
	byInit := slices.Clone(todo.Changes) // those that start anew without being told to
	for _, s := range daemons.Services {
		if s.After == "" && slices.Contains(restart, s.Name) { // init restarts what waits for it
			for _, t := range daemons.Services {
				if t.After != "" {
					byInit = append(byInit, t.Name)
				}
			}
		}
	}
	for _, service := range restart {
		if slices.Contains(byInit, service) {
			continue
		}
		if err := r.a.containers.RestartService(ctx, id, service); err != nil {
			return err
		}
	}
	return r.mark(s.Node, func(m *applied) { m.Soft, m.Files, m.Daemons = want.Soft, want.Files, daemons })
}

// stopped names the services of a node that somebody has stopped.
func (r *runner) stopped(id container.ID) (names []string) {
	services, _ := r.a.containers.Services(id)
	for _, s := range services {
		if s.State == container.ServiceStopped {
			names = append(names, s.Name)
		}
	}
	return names
}

// commandGrace is how long a command of the user's may go on when a newer plan has
// come: most end within it, and need not be ended half done.
const commandGrace = time.Second

// exec runs the user's commands in a node that has just been released. They run
// in order; the first that fails fails the VNet, since what follows relies on it.
// A pass that is superseded leaves a mark of those that have run, and the next one
// goes on from there: few commands can be run twice.
func (r *runner) exec(ctx context.Context, s reconcile.Step) error {
	n := r.nodes[s.Node]
	limit := n.ExecTimeout
	if limit == 0 {
		limit = vnet.DefaultExecTimeout
	}
	defer r.w.report.doing("")
	want := r.marks(n).Exec
	r.mu.Lock()
	have := r.seen.marks[s.Node]
	r.mu.Unlock()
	first := 0
	if have.Running == want {
		first = min(have.Ran, len(n.Exec))
	}
	patient, cancel := contextWithGrace(ctx, commandGrace)
	defer cancel()
	for i, line := range n.Exec[first:] {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		r.w.report.doing(fmt.Sprintf("%s runs `%s`", n.Name, line))
		if err := r.commandWithin(patient, limit, r.id(s.Node), []string{"/bin/sh", "-c", line}); err != nil {
			return err
		}
		if ran := first + i + 1; ran < len(n.Exec) {
			if err := r.mark(s.Node, func(m *applied) { m.Running, m.Ran = want, ran }); err != nil {
				return err
			}
		}
	}
	return r.mark(s.Node, func(m *applied) { m.Exec, m.Running, m.Ran = want, "", 0 })
}

// contextWithGrace gives a context that ends so long after its parent.
func contextWithGrace(parent context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(parent))
	stop := context.AfterFunc(parent, func() { time.AfterFunc(grace, cancel) })
	return ctx, func() { stop(); cancel() }
}

// commandWithin runs a command in a node, for so long at most.
func (r *runner) commandWithin(ctx context.Context, limit time.Duration, id container.ID, argv []string) error {
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := r.command(bounded, id, argv)
	if err != nil && bounded.Err() != nil && ctx.Err() == nil {
		return fmt.Errorf("%q in %s was ended after %v: a command that is to stay, such as a server, belongs under cmd; one that takes longer needs a larger exec-timeout",
			strings.Join(argv, " "), id, limit)
	}
	return err
}

// command runs a command in a node and fails with what it printed.
func (r *runner) command(ctx context.Context, id container.ID, argv []string) error {
	var out tail
	p, err := r.a.containers.Exec(ctx, id, container.ExecSpec{Argv: argv, Stdout: &out, Stderr: &out})
	if err != nil {
		return fmt.Errorf("run %q in %s: %w", strings.Join(argv, " "), id, err)
	}
	code, err := p.Wait()
	if err != nil {
		return fmt.Errorf("run %q in %s: %w", strings.Join(argv, " "), id, err)
	}
	if code != 0 {
		return fmt.Errorf("%q in %s ended with status %d: %s", strings.Join(argv, " "), id, code, out.String())
	}
	return nil
}

// tail keeps the last of what a command prints.
type tail struct{ b bytes.Buffer }

const tailSize = 512

func (t *tail) Write(p []byte) (int, error) {
	t.b.Write(p)
	if over := t.b.Len() - tailSize; over > 0 {
		t.b.Next(over)
	}
	return len(p), nil
}

func (t *tail) String() string { return strings.TrimSpace(t.b.String()) }
