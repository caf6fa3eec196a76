package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"trellis/internal/routing"
	"trellis/internal/vnet"
)

const (
	// checkTimeout bounds a daemon's program that reads one configuration.
	checkTimeout = 10 * time.Second
	// nobody is the user that reads configurations where root validates: what they
	// include is then what anybody may read.
	nobody = 65534
)

// validateDeep has the daemons' own programs read what the nodes of a network
// bring for them. The error names each line that they do not take. Nodes with
// software of their own are left out, and a program that is not installed is,
// with a line that says so.
func (e *Env) validateDeep(ctx context.Context, file string, v *vnet.VNet) error {
	dir, err := os.MkdirTemp("", "trellis-validate-")
	if err != nil {
		return fmt.Errorf("make a directory for the nodes' files: %w", err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		return fmt.Errorf("make a directory for the nodes' files: %w", err)
	}
	var wrong []string
	left := map[string]bool{} // programs that are not there
	for i := range v.Nodes {
		n := &v.Nodes[i]
		if n.Image != vnet.DefaultImage || len(routing.Checks(n, dir)) == 0 {
			continue
		}
		found, err := e.checkNode(ctx, filepath.Join(dir, n.Name), n, left)
		if err != nil {
			return fmt.Errorf("check the configurations of %s: %w", n.Name, err)
		}
		for _, f := range found {
			wrong = append(wrong, fmt.Sprintf("%s: node %s: %s", file, n.Name, f))
		}
	}
	if len(wrong) > 0 {
		return &inputError{errors.New(strings.Join(wrong, "\n"))}
	}
	return nil
}

// checkNode gives what is wrong with the configurations of one node.
func (e *Env) checkNode(ctx context.Context, dir string, n *vnet.Node, left map[string]bool) ([]string, error) {
	if err := writeNodeFiles(dir, n); err != nil {
		return nil, err
	}
	var wrong []string
	for _, c := range routing.Checks(n, dir) {
		program := c.Argv[0]
		if _, err := os.Stat(program); errors.Is(err, os.ErrNotExist) {
			if !left[program] {
				fmt.Fprintf(e.Stderr, "trellis: %s is not installed, so what it would read is not checked; install the package %s\n", program, c.Daemon.Kind().Package)
			}
			left[program] = true
			continue
		}
		out, err := runCheck(ctx, dir, c.Argv)
		if err != nil {
			return nil, err
		}
		for _, complaint := range routing.ParseComplaints(out) {
			at := c.Path
			if complaint.Line > 0 {
				at = fmt.Sprintf("%s:%d", c.Path, complaint.Line)
			}
			wrong = append(wrong, fmt.Sprintf("%s: %s", at, oneLine(complaint.What)))
		}
	}
	return wrong, nil
}

// writeNodeFiles writes a node's files below dir, as anybody may read them.
func writeNodeFiles(dir string, n *vnet.Node) error {
	for _, f := range append([]vnet.File{{Path: "/vtysh.conf"}}, n.Files...) {
		at := filepath.Join(dir, filepath.Join("/", f.Path))
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(at, f.Content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// runCheck runs a daemon's program, as nobody where this is root, and gives what
// it says of a configuration; nothing where it takes it.
func runCheck(ctx context.Context, dir string, argv []string) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, checkTimeout, fmt.Errorf("%s is not done after %s", argv[0], checkTimeout))
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Env, cmd.WaitDelay = dir, []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if os.Geteuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	case err != nil && !errors.As(err, &exit):
		return "", err
	case err != nil && out.Len() == 0:
		return fmt.Sprintf("%s ends with %v", argv[0], err), nil
	}
	return out.String(), nil
}
