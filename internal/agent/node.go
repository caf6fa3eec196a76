package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"

	"trellis/internal/agent/reconcile"
	"trellis/internal/routing"
	"trellis/internal/substrate/container"
	"trellis/internal/vnet"
)

// reload brings new daemon configuration and a new /etc/hosts into a running
// node without disturbing what stays the same.
func (r *runner) reload(ctx context.Context, s reconcile.Step) error {
	n := r.nodes[s.Node]
	id := r.id(s.Node)
	r.mu.Lock()
	old := r.seen.marks[s.Node].Daemons
	r.mu.Unlock()
	todo := routing.Reload(old, n.Daemons)
	if todo.RestartNode {
		return errors.New("the change needs a new container: this is a defect, please report it") // Boot covers the services
	}
	files := append([]vnet.File{{Path: "/etc/hosts", Content: r.want.Hosts, Mode: 0o644}}, todo.Files...)
	if err := r.a.containers.WriteFiles(ctx, id, files); err != nil {
		return err
	}
	for _, argv := range todo.Commands {
		if err := r.command(ctx, id, argv); err != nil {
			return err
		}
	}
	for _, service := range todo.Restart {
		if err := r.a.containers.RestartService(ctx, id, service); err != nil {
			return err
		}
	}
	return r.mark(s.Node, func(m *applied) { m.Soft, m.Daemons = r.marks(n).Soft, n.Daemons })
}

// exec runs the user's commands in a node that has just been released. They run
// in order; the first that fails fails the VNet, since what follows relies on it.
func (r *runner) exec(ctx context.Context, s reconcile.Step) error {
	n := r.nodes[s.Node]
	for _, line := range n.Exec {
		if err := r.command(ctx, r.id(s.Node), []string{"/bin/sh", "-c", line}); err != nil {
			return err
		}
	}
	return r.mark(s.Node, func(m *applied) { m.Exec = r.marks(n).Exec })
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
