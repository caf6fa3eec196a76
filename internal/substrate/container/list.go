package container

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// List returns every container of this instance, sorted, also half-made and
// dead ones: whatever has a directory, a cgroup or state of the OCI runtime.
func (r *Runtime) List(ctx context.Context) ([]State, error) {
	ids, err := r.traces()
	if err != nil {
		return nil, err
	}
	states := make([]State, 0, len(ids))
	for _, id := range ids {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		states = append(states, r.state(id))
	}
	return states, nil
}

// state is what is known of a container. A record that is missing or cannot be
// read is a container that cannot be running: it is written before, and only
// replaced as a whole.
func (r *Runtime) state(id ID) State {
	c, err := r.load(id)
	if err != nil {
		return State{ID: id}
	}
	s := State{
		ID: id, Released: c.Released, Fingerprint: c.Fingerprint, Limits: c.Limits,
		ServicesDigest: Digest(c.Services), Started: c.Created,
	}
	if c.running() {
		s.Running, s.Pid = true, c.Pid
	}
	return s
}

// traces lists whatever exists in the name of a container.
func (r *Runtime) traces() ([]ID, error) {
	seen := map[ID]bool{}
	dirs, err := filepath.Glob(filepath.Join(r.cfg.RunDir, "nodes", "*", "*"))
	if err != nil {
		return nil, err
	}
	for _, d := range dirs {
		seen[ID{filepath.Base(filepath.Dir(d)), filepath.Base(d)}] = true
	}
	groups, err := r.cgroups.Groups()
	if err != nil {
		return nil, err
	}
	for _, g := range groups {
		vnet, node, _ := strings.Cut(g, "/")
		seen[ID{vnet, node}] = true
	}
	entries, err := os.ReadDir(filepath.Join(r.cfg.RunDir, "oci"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		if vnet, node, ok := strings.Cut(e.Name(), "."); ok && vnet != "" {
			seen[ID{vnet, node}] = true
		}
	}
	ids := make([]ID, 0, len(seen))
	for id := range seen {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b ID) int {
		return bytes.Compare([]byte(a.VNet+"\x00"+a.Node), []byte(b.VNet+"\x00"+b.Node))
	})
	return ids, nil
}
