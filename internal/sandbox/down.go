package sandbox

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"trellis/internal/substrate/container"
)

// Down removes a sandbox: its services, all that they have built, its underlay
// and its files. It asks nothing of the services, so that it works whatever
// state they are in. It gives the name of what it has removed; [ErrNone] says that
// there was nothing.
func (p Place) Down(ctx context.Context, sandbox string, progress Progress) (string, error) {
	if os.Geteuid() != 0 {
		return "", errors.New("a sandbox is removed by root; run it as root")
	}
	p, err := p.absolute()
	if err != nil {
		return "", err
	}
	unlock, err := p.lock(ctx, func(phase string) { progress(phase, 0, 0) })
	if err != nil {
		return "", err
	}
	defer unlock()
	if names, err := p.names(); err != nil {
		return "", err
	} else if sandbox != "" && !slices.Contains(names, sandbox) {
		return "", ErrNone
	}
	name, err := p.pick(sandbox)
	if err != nil {
		return "", err
	}
	return name, p.paths(name).remove(ctx, name, progress)
}

// remove removes all of a sandbox. Its record goes last, so that what is left of
// it at any moment is still known as its.
func (p paths) remove(ctx context.Context, name string, progress Progress) error {
	hosts, spaces, err := p.found()
	if err != nil {
		return err
	}
	// No service may mend what is being removed, and no process may begin one.
	progress("services", 0, len(hosts))
	for _, space := range spaces {
		if err := p.killIn(space); err != nil {
			return fmt.Errorf("end the processes of %s: %w", space, err)
		}
	}
	for i, host := range hosts {
		progress("hosts", i, len(hosts))
		if err := p.sweep(ctx, host); err != nil {
			return fmt.Errorf("remove what host %s has built: %w", host, err)
		}
	}
	progress("underlay", len(hosts), len(hosts))
	for _, space := range spaces {
		if err := unpin(p.pin(space)); err != nil {
			return fmt.Errorf("remove the namespace of %s: %w", space, err)
		}
	}
	if err := unmountBelow(p.run, p.state); err != nil {
		return err
	}
	if err := os.RemoveAll(p.run); err != nil {
		return err
	}
	entries, err := os.ReadDir(p.state)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		if path := filepath.Join(p.state, e.Name()); path != p.record() {
			if err := os.RemoveAll(path); err != nil {
				return err
			}
		}
	}
	return os.RemoveAll(p.state)
}

// found gives the hosts and the namespaces that the sandbox has anything of,
// whatever its record says.
func (p paths) found() (hosts, spaces []string, err error) {
	for _, dir := range []string{p.run, p.state} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, nil, err
		}
		for _, e := range entries {
			if what, _ := checkHost(e.Name()); e.IsDir() && what == "" {
				hosts = append(hosts, e.Name())
			}
		}
	}
	entries, err := os.ReadDir(p.pins())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, err
	}
	for _, e := range entries {
		spaces = append(spaces, e.Name())
	}
	slices.Sort(hosts)
	return slices.Compact(hosts), spaces, nil
}

// killIn ends all processes in a namespace.
func (p paths) killIn(name string) error {
	s, err := openSpace(p.pin(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	defer s.close()
	return s.killAll()
}

// sweep removes the nodes of a host. Its interfaces and BPF programs go with its
// namespace and its mounts.
func (p paths) sweep(ctx context.Context, host string) error {
	r, err := container.New(container.Config{Instance: p.instance(host), RunDir: p.runOf(host), StateDir: p.homeOf(host)})
	if err != nil {
		return err
	}
	defer r.Close()
	states, err := r.List(ctx)
	if err != nil {
		return err
	}
	ids := make([]container.ID, len(states))
	for i, s := range states {
		ids[i] = s.ID
	}
	return errors.Join(r.Remove(ctx, ids...), r.Sweep(ctx))
}

// unmountBelow unmounts what is mounted below the directories, the last first.
func unmountBelow(dirs ...string) error {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	defer f.Close()
	var mounts []string
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 5 {
			continue
		}
		if at := unescape(fields[4]); slices.ContainsFunc(dirs, func(dir string) bool { return strings.HasPrefix(at, dir+"/") }) {
			mounts = append(mounts, at)
		}
	}
	slices.Reverse(mounts)
	for _, at := range mounts {
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("unmount %s: %w", at, err)
		}
	}
	return nil
}

// unescape takes the escapes of mountinfo (proc_pid_mountinfo(5)) back.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace
