package container

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"trellis/internal/substrate/image"
	"trellis/internal/vnet"
)

// Limits of the node's init (init/init.c).
const (
	maxServices    = 39 // besides the image's command
	maxTable       = 64 << 10
	maxStrings     = 255
	maxServiceName = 31
)

// CommandName is the image's command among the services.
const CommandName = "command"

func checkServices(services []Service) error {
	if len(services) > maxServices {
		return fmt.Errorf("%d services: a node can have %d", len(services), maxServices)
	}
	seen := map[string]bool{CommandName: true}
	loaders := 0
	for _, s := range services {
		switch {
		case s.Name == "" || len(s.Name) > maxServiceName || strings.Trim(s.Name, "abcdefghijklmnopqrstuvwxyz0123456789-") != "":
			return fmt.Errorf("service name %q: want 1 to %d of a-z, 0-9 and '-'", s.Name, maxServiceName)
		case seen[s.Name]:
			return fmt.Errorf("service name %q is used twice", s.Name)
		case len(s.Argv) == 0 || !strings.HasPrefix(s.Argv[0], "/"):
			return fmt.Errorf("service %s: want the absolute path of a program", s.Name)
		case s.After != "" && !strings.HasPrefix(s.After, "/"):
			return fmt.Errorf("service %s: want an absolute path to start after, not %q", s.Name, s.After)
		case s.Ready != "" && !strings.HasPrefix(s.Ready, "/"):
			return fmt.Errorf("service %s: want an absolute path to be ready by, not %q", s.Name, s.Ready)
		case s.Loads && (s.After != "" || s.Ready != "" || s.Optional):
			return fmt.Errorf("service %s loads the others, and waits for them alone", s.Name)
		}
		if s.Loads {
			loaders++
		}
		seen[s.Name] = true
	}
	if loaders > 1 {
		return fmt.Errorf("%d services load the others: a node can have one", loaders)
	}
	return nil
}

// environment is that of the node: the image's, then the specification's.
func environment(s *Spec, img *image.Image) []string {
	all := map[string]string{
		"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME": "/root", "TERM": "linux", "LANG": "C.UTF-8", "container": "oci",
	}
	if img != nil {
		for _, e := range img.Env {
			if k, v, ok := strings.Cut(e, "="); ok {
				all[k] = v
			}
		}
	}
	maps.Copy(all, s.Env)
	env := make([]string, 0, len(all))
	for _, k := range slices.Sorted(maps.Keys(all)) {
		env = append(env, k+"="+all[k])
	}
	return env
}

// imageCommand is what the image runs; nil if nothing.
func imageCommand(s *Spec, img *image.Image, env []string) *command {
	c := &command{Argv: s.Cmd, Env: env, Dir: "/", Restart: s.Restart}
	if img != nil {
		tail := s.Cmd
		if len(tail) == 0 {
			tail = img.Cmd
		}
		c.Argv = slices.Concat(img.Entrypoint, tail)
		c.UID, c.GID = img.UID, img.GID
		if img.WorkingDir != "" {
			c.Dir = img.WorkingDir
		}
	}
	if len(c.Argv) == 0 {
		return nil
	}
	return c
}

// tableHead is the first string of a service table, without its version.
const tableHead = "trellis-services-"

// Versions of the table, of which a node's init reads one ([record.Table]).
const (
	// firstTable is that of nodes whose record names none. It has no services that are
	// loaded, that load, or that may be missing.
	firstTable   = 1
	currentTable = 2
)

// table is what init reads; init/init.c defines it.
func (c *record) table() ([]byte, error) {
	version := max(firstTable, c.Table)
	var b bytes.Buffer
	put := func(fields ...string) {
		for _, f := range fields {
			b.WriteString(f)
			b.WriteByte(0)
		}
	}
	list := func(values []string) {
		put(strconv.Itoa(len(values)))
		put(values...)
	}
	stopped := func(name string) bool { return slices.Contains(c.Stopped, name) }
	var services []Service
	if !c.Yields || c.Command == nil {
		services = slices.DeleteFunc(slices.Clone(c.Services), func(s Service) bool { return stopped(s.Name) })
	}
	imageCommand := c.Command
	if stopped(CommandName) {
		imageCommand = nil
	}
	count := len(services)
	if imageCommand != nil {
		count++
	}
	put(tableHead+strconv.Itoa(version), strconv.Itoa(count))
	entry := func(name, kind string, cmd command, after, ready string) error {
		if len(cmd.Argv) > maxStrings || len(cmd.Env) > maxStrings {
			return fmt.Errorf("service %s: more than %d arguments or variables", name, maxStrings)
		}
		if strings.ContainsRune(strings.Join(slices.Concat(cmd.Argv, cmd.Env, []string{cmd.Dir, after, ready}), ""), 0) {
			return fmt.Errorf("service %s: a NUL in an argument, variable or path", name)
		}
		put(name, kind, strconv.Itoa(c.Generations[name]), strconv.Itoa(cmd.UID), strconv.Itoa(cmd.GID), cmd.Dir, after)
		if version > firstTable {
			put(ready)
		}
		list(cmd.Argv)
		list(cmd.Env)
		return nil
	}
	for _, s := range services {
		kind := "d"
		switch {
		case s.Loads:
			kind = "l"
		case s.Optional:
			kind = "p"
		}
		if version == firstTable && (kind != "d" || s.Ready != "") {
			return nil, fmt.Errorf("service %s needs a newer init than the node has, which started under an earlier version of Trellis: restart the node", s.Name)
		}
		if err := entry(s.Name, kind, command{Argv: s.Argv, Env: slices.Concat(c.Env, s.Env), Dir: "/"}, s.After, s.Ready); err != nil {
			return nil, err
		}
	}
	if imageCommand != nil {
		kind := map[vnet.Restart]string{vnet.RestartAlways: "d", vnet.RestartOnFailure: "f"}[imageCommand.Restart]
		if kind == "" {
			kind = "o" // once
		}
		if err := entry(CommandName, kind, *imageCommand, "", ""); err != nil {
			return nil, err
		}
	}
	if b.Len() > maxTable {
		return nil, fmt.Errorf("services with all their arguments and variables take %d bytes; a node can have %d", b.Len(), maxTable)
	}
	return b.Bytes(), nil
}

// SetServices gives a node other services: new ones start, missing ones are
// stopped, changed ones are stopped and started, the others are left alone.
func (r *Runtime) SetServices(ctx context.Context, id ID, s []Service) error {
	if err := checkServices(s); err != nil {
		return fmt.Errorf("container %s: %w", id, err)
	}
	return r.changeServices(id, func(c *record) error {
		c.Services = s
		c.Stopped = slices.DeleteFunc(c.Stopped, func(name string) bool { return !slices.Contains(serviceNames(c), name) })
		return nil
	})
}

// RestartService stops a service and starts it again; one that was stopped starts. The
// image's command goes by the name "command".
func (r *Runtime) RestartService(ctx context.Context, id ID, name string) error {
	return r.changeServices(id, func(c *record) error {
		if err := c.hasService(name); err != nil {
			return err
		}
		if !c.start(name) {
			c.startAnew(name)
		}
		return nil
	})
}

// StopService ends a service, as RestartService does, and has it stay so until it is
// started again, or the node is. It returns when the service has ended.
func (r *Runtime) StopService(ctx context.Context, id ID, name string) error {
	if err := r.changeServices(id, func(c *record) error {
		if err := c.hasService(name); err != nil {
			return err
		}
		i, found := slices.BinarySearch(c.Stopped, name)
		if found {
			return nil
		}
		if running, _ := r.Services(id); !slices.ContainsFunc(running, func(s ServiceStatus) bool { return s.Name == name }) {
			return &NoServiceError{fmt.Sprintf("%s does not run in node %s", name, id)} // no such program, or not started yet
		}
		c.Stopped = slices.Insert(c.Stopped, i, name)
		return nil
	}); err != nil {
		return err
	}
	for {
		services, ok := r.Services(id)
		if !ok || slices.ContainsFunc(services, func(s ServiceStatus) bool { return s.Name == name && s.State == ServiceStopped }) {
			r.notify(id)
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// StartService starts a service that was stopped. One that runs it leaves alone.
func (r *Runtime) StartService(ctx context.Context, id ID, name string) error {
	err := r.changeServices(id, func(c *record) error {
		if err := c.hasService(name); err != nil {
			return err
		}
		c.start(name)
		return nil
	})
	if err == nil {
		r.notify(id)
	}
	return err
}

// hasService tells why a name is none of the node's services.
func (c *record) hasService(name string) error {
	names := serviceNames(c)
	switch i := slices.IndexFunc(c.Services, func(s Service) bool { return s.Name == name }); {
	case len(names) == 0:
		return &NoServiceError{fmt.Sprintf("node %s runs no service and no command", c.ID)}
	case !slices.Contains(names, name):
		return &NoServiceError{fmt.Sprintf("node %s has no service %q; it has %s", c.ID, name, strings.Join(names, ", "))}
	case i >= 0 && c.Services[i].Loads:
		return &NoServiceError{fmt.Sprintf("%s of node %s loads the configuration of the others, and runs when one of them starts", name, c.ID)}
	}
	return nil
}

// start has a service that was stopped run again, and tells whether it was. What waits
// for a path of that service starts anew, as when it ends by itself.
func (c *record) start(name string) bool {
	i, found := slices.BinarySearch(c.Stopped, name)
	if !found {
		return false
	}
	c.Stopped = slices.Delete(c.Stopped, i, i+1)
	first := slices.ContainsFunc(c.Services, func(s Service) bool { return s.Name == name && s.After == "" && !s.Optional })
	for _, s := range c.Services {
		if first && s.After != "" {
			c.startAnew(s.Name)
		}
	}
	return true
}

// startAnew has a service that runs end and start.
func (c *record) startAnew(name string) {
	if c.Generations == nil {
		c.Generations = map[string]int{}
	}
	c.Generations[name]++
}

func (r *Runtime) changeServices(id ID, change func(*record) error) error {
	defer r.lock(id)()
	c, err := r.loadRunning(id)
	if err != nil {
		return err
	}
	if err := change(c); err != nil {
		return err
	}
	table, err := c.table()
	if err != nil {
		return fmt.Errorf("container %s: %w", id, err)
	}
	if !c.Released {
		table = heldTable(table)
	}
	// In place: init has the file open. Init reads it only when told to, and the
	// record, by which the change counts as done, comes last.
	if err := overwrite(filepath.Join(r.nodeDir(id), servicesFile), table); err != nil {
		return fmt.Errorf("container %s: write the service table: %w", id, err)
	}
	if err := r.watchStatus(c); err != nil {
		return fmt.Errorf("container %s: %w", id, err)
	}
	if err := r.signal(id, unix.SIGHUP); err != nil {
		return fmt.Errorf("container %s: signal init to reload its services: %w", id, err)
	}
	return r.save(c)
}

// heldTable gives a table as init finds it before it is to start anything: with a
// first byte that no table has. It waits until that is put right.
func heldTable(table []byte) []byte {
	held := slices.Clone(table)
	held[0] = '-'
	return held
}

// releaseTable puts the first byte right. Init is to be told by a SIGHUP.
func releaseTable(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt([]byte(tableHead[:1]), 0)
	return errors.Join(err, f.Close())
}

func overwrite(path string, content []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(content, 0)
	return errors.Join(err, f.Truncate(int64(len(content))), f.Close())
}
