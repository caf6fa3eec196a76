package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"trellis/internal/serve"
)

// Progress is called with how far a verb has come: what it is at, and how many of how
// many are done.
type Progress func(phase string, done, total int)

// Up makes a sandbox, or completes it. One that is there and was made from
// another description is refused. Where it fails half-way, what is made stays,
// for another Up or for Down.
func (p Place) Up(ctx context.Context, s *Spec, progress Progress) error {
	if os.Geteuid() != 0 {
		return errors.New("a sandbox makes network namespaces, which needs root; run it as root")
	}
	p, err := p.absolute()
	if err != nil {
		return err
	}
	unlock, err := p.lock(ctx, func(phase string) { progress(phase, 0, 0) })
	if err != nil {
		return err
	}
	defer unlock()
	at := p.paths(s.Name)
	old, err := at.load()
	switch {
	case err == nil && !reflect.DeepEqual(old, s):
		return fmt.Errorf("sandbox %s is there and differs in %s; `trellis sandbox down %s` first", s.Name, difference(old, s), s.Name)
	case errors.Is(err, fs.ErrNotExist):
		if err := at.begin(s); err != nil {
			return err
		}
	case err != nil:
		return err
	}
	if err := at.complete(ctx, s, progress); err != nil {
		return fmt.Errorf("%w; sandbox %s stays as far as it has come: the same command completes it, `trellis sandbox down %s` removes it", err, s.Name, s.Name)
	}
	return nil
}

// begin makes the directories of a sandbox, and writes down what it is to be.
func (p paths) begin(s *Spec) error {
	for _, dir := range []string{p.state, p.run} {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return fmt.Errorf("make the sandbox's directories: %w", err)
		}
	}
	return p.save(s)
}

// complete makes what is missing of a sandbox.
func (p paths) complete(ctx context.Context, s *Spec, progress Progress) error {
	total := len(s.Hosts)
	progress("underlay", 0, total)
	if err := os.MkdirAll(p.run, 0o711); err != nil { // the machine may have started anew
		return err
	}
	if err := os.Symlink(p.state, p.stateLink()); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := p.certify(s); err != nil {
		return fmt.Errorf("make the hosts' certificates: %w", err)
	}
	for i := range s.Hosts {
		if err := p.configure(s, i); err != nil {
			return fmt.Errorf("write the configuration of %s: %w", s.Hosts[i].Name, err)
		}
	}
	u, err := makeUnderlay(p, s)
	if err != nil {
		return err
	}
	defer u.close()

	// The first host has the store; the others wait for it as they do on machines.
	progress("hosts", 0, total)
	ended := make(chan struct{}, total)
	g, ctx := errgroup.WithContext(ctx)
	for i := range s.Hosts {
		g.Go(func() error {
			_, err := p.start(ctx, s.Hosts[i].Name, u.hosts[i])
			ended <- struct{}{}
			return err
		})
	}
	for i := range total {
		<-ended
		progress("hosts", i+1, total)
	}
	return g.Wait()
}

// difference names where two descriptions part.
func difference(a, b *Spec) string {
	switch {
	case a.Underlay != b.Underlay:
		return "its underlay"
	case len(a.Hosts) != len(b.Hosts):
		return fmt.Sprintf("the number of its hosts (%d, not %d)", len(a.Hosts), len(b.Hosts))
	}
	for i := range a.Hosts {
		if a.Hosts[i] != b.Hosts[i] {
			return "host " + a.Hosts[i].Name
		}
	}
	return "its name"
}

// Exec runs a command in the namespace of a host, or of the fabric, in the place
// of this process. What it asks of Trellis, it asks of that host. It returns
// only to say what went wrong.
func (p Place) Exec(sandbox, host string, argv []string, lookPath func(string) (string, error)) error {
	p, err := p.absolute()
	if err != nil {
		return err
	}
	name, err := p.pick(sandbox)
	if err != nil {
		return err
	}
	at := p.paths(name)
	s, err := at.spec(name)
	if err != nil {
		return err
	}
	env := environment()
	if host != fabric {
		if _, err := s.index(host); err != nil {
			return fmt.Errorf("%w, and between them is the %s", err, fabric)
		}
		env = append(env, "TRELLIS_RUN_DIR="+at.runOf(host), "TRELLIS_STATE_DIR="+at.homeOf(host))
	}
	program, err := lookPath(argv[0])
	if err != nil {
		return err
	}
	ns, err := openSpace(at.pin(host))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("sandbox %s is not complete; `trellis sandbox up FILE` completes it", name)
	} else if err != nil {
		return err
	}
	defer ns.close()
	return ns.do(func() error { return &fs.PathError{Op: "run", Path: program, Err: unix.Exec(program, argv, env)} })
}

// HostState is what is known of a host from outside.
type HostState struct {
	Name   string
	PID    int // of its service; 0: it does not run
	RunDir string
	// Instance is the tag of all that its service owns on the machine.
	Instance string
	Addrs    []netip.Addr // of its uplink, IPv4 first
	Impairment
}

// State is a sandbox as it is.
type State struct {
	Name  string
	MTU   int         // of the underlay, bytes
	Hosts []HostState // as in the file
	// Broken says what is missing of the sandbox; empty: it is complete.
	Broken string
}

// List gives all sandboxes, by name.
func (p Place) List() ([]State, error) {
	p, err := p.absolute()
	if err != nil {
		return nil, err
	}
	names, err := p.names()
	if err != nil {
		return nil, err
	}
	all := []State{}
	for _, name := range names {
		st := State{Name: name, Hosts: []HostState{}}
		if err := p.paths(name).read(&st); err != nil {
			st.Broken = err.Error()
		}
		all = append(all, st)
	}
	return all, nil
}

func (p paths) read(st *State) error {
	s, err := p.spec(st.Name)
	if err != nil {
		return err
	}
	st.MTU = s.Underlay.MTU
	for i, h := range s.Hosts {
		pid, err := serve.Running(p.service(h.Name))
		if err != nil {
			return err
		}
		st.Hosts = append(st.Hosts, HostState{Name: h.Name, PID: pid, RunDir: p.runOf(h.Name), Instance: p.instance(h.Name), Addrs: s.Underlay.link(i).host})
	}
	u, err := openUnderlay(p, s)
	if err != nil {
		return err
	}
	defer u.close()
	all, err := u.impairments()
	if err != nil {
		return err
	}
	for i := range all {
		st.Hosts[i].Impairment = all[i]
	}
	return nil
}

// Serving names the first host of a sandbox below a run directory whose service
// runs, and its run directory. With several such sandboxes it is an error that
// names them; with none, the name is empty.
func Serving(runDir string) (sandbox, host, dir string, err error) {
	p, err := Place{RunDir: runDir, StateDir: runDir}.absolute()
	if err != nil {
		return "", "", "", err
	}
	entries, err := os.ReadDir(filepath.Join(p.RunDir, folder))
	if err != nil {
		return "", "", "", nil // there is none, or it is not for this user
	}
	var names []string
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		at := p.paths(e.Name())
		if at.state, err = os.Readlink(at.stateLink()); err != nil {
			continue // half made
		}
		s, err := at.load()
		if err != nil {
			continue
		}
		for _, h := range s.Hosts {
			if pid, err := serve.Running(serve.Config{RunDir: at.runOf(h.Name)}); err == nil && pid != 0 {
				sandbox, host, dir = s.Name, h.Name, at.runOf(h.Name)
				names = append(names, s.Name)
				break
			}
		}
	}
	if len(names) > 1 {
		return "", "", "", fmt.Errorf("no service runs in %s but those of several sandboxes (%s); name a host of one with --run-dir %s",
			p.RunDir, strings.Join(names, ", "), filepath.Join(p.RunDir, folder, "SANDBOX", "HOST"))
	}
	return sandbox, host, dir, nil
}
