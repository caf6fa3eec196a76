package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"go.yaml.in/yaml/v3"
	"golang.org/x/sync/errgroup"

	"trellis/internal/pki"
	"trellis/internal/serve"
	"trellis/internal/vnet"
)

// Ports on the underlay.
const (
	storePort = "2379" // of the store, on the first host
	agentPort = "7443" // of each host's agent
)

// configuration is a host's trellis.yaml, in the terms of `trellis serve`.
type configuration struct {
	Host     string         `yaml:"host"`
	Uplinks  []uplink       `yaml:"uplinks"`
	Capacity *capacity      `yaml:"capacity,omitempty"`
	Listen   string         `yaml:"listen"`
	Store    store          `yaml:"store"`
	TLS      certificateSet `yaml:"tls"`
}

type uplink struct {
	Interface string   `yaml:"interface"`
	Addresses []string `yaml:"addresses,flow"`
}

type capacity struct {
	Memory string  `yaml:"memory,omitempty"`
	CPU    float64 `yaml:"cpu,omitempty"`
}

type store struct {
	Listen    string   `yaml:"listen,omitempty"`
	Endpoints []string `yaml:"endpoints,omitempty,flow"`
}

type certificateSet struct {
	CA   string `yaml:"ca"`
	Cert string `yaml:"cert"`
	Key  string `yaml:"key"`
}

// files gives the certificates of a host.
func (p paths) files(host string) pki.Files {
	return pki.Files{
		CA:   filepath.Join(p.certs(), "ca.pem"),
		Cert: filepath.Join(p.certs(), host+".pem"),
		Key:  filepath.Join(p.certs(), host+"-key.pem"),
	}
}

// configure writes a host's configuration.
func (p paths) configure(s *Spec, i int) error {
	host, at := s.Hosts[i], s.Underlay.link(i)
	files := p.files(host.Name)
	c := configuration{
		Host:   host.Name,
		Listen: net.JoinHostPort(at.host[0].String(), agentPort),
		TLS:    certificateSet(files),
	}
	up := uplink{Interface: Uplink}
	for _, a := range at.host {
		up.Addresses = append(up.Addresses, a.String())
	}
	c.Uplinks = []uplink{up}
	if host.Memory > 0 || host.CPU > 0 {
		c.Capacity = &capacity{CPU: host.CPU}
		if host.Memory > 0 {
			c.Capacity.Memory = vnet.FormatSize(host.Memory)
		}
	}
	shared := net.JoinHostPort(s.Underlay.link(0).host[0].String(), storePort)
	if i == 0 {
		c.Store.Listen = shared
	} else {
		c.Store.Endpoints = []string{"https://" + shared}
	}
	text, err := yaml.Marshal(c)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(p.homeOf(host.Name), 0o711); err != nil {
		return err
	}
	return writeFile(p.config(host.Name), text, 0o644)
}

// certify makes the certificates that are missing or no longer good.
func (p paths) certify(s *Spec) error {
	if err := os.MkdirAll(p.certs(), 0o700); err != nil {
		return err
	}
	issue := func(all bool) error {
		for i, h := range s.Hosts {
			if !all && p.files(h.Name).Check() == nil {
				continue
			}
			identity := pki.Identity{Name: h.Name}
			for _, a := range s.Underlay.link(i).host {
				identity.Addresses = append(identity.Addresses, a.String())
			}
			if _, err := pki.NewHost(p.certs(), identity, true); err != nil {
				return err
			}
		}
		return nil
	}
	if issue(false) == nil {
		return nil
	}
	// The first time, or one that was interrupted.
	if _, err := pki.NewCA(p.certs(), true); err != nil {
		return err
	}
	return issue(true)
}

// service says how the service of a host is run.
func (p paths) service(host string) serve.Config {
	return serve.Config{RunDir: p.runOf(host), StateDir: p.homeOf(host), Instance: p.instance(host)}
}

// start starts a host's service in its namespace, unless it runs, and returns
// when it is ready. It reports whether there was anything to start.
func (p paths) start(ctx context.Context, host string, s *space) (bool, error) {
	for started := false; ; started = true {
		pid, err := serve.Running(p.service(host))
		if err != nil {
			return false, err
		}
		if pid != 0 {
			// It may be starting yet, for a command that was killed meanwhile.
			if ready, err := p.waitReady(ctx, host, pid); ready || err != nil {
				return false, err
			}
			continue
		}
		err = p.launch(ctx, host, s)
		if err == nil {
			return true, nil
		}
		if pid, _ := serve.Running(p.service(host)); pid == 0 || started {
			return false, err
		}
		// One that was starting has come first.
	}
}

// launch runs `trellis serve` for a host.
func (p paths) launch(ctx context.Context, host string, s *space) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	c := p.service(host)
	cmd := exec.CommandContext(ctx, self, "serve", "--background", "--config", p.config(host),
		"--run-dir", c.RunDir, "--state-dir", c.StateDir, "--instance", c.Instance)
	cmd.Env = environment()
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	if err := s.do(cmd.Start); err != nil {
		return fmt.Errorf("start the service of %s: %w", host, err)
	}
	if err := cmd.Wait(); err != nil {
		why := strings.TrimPrefix(strings.TrimSpace(output.String()), "trellis: ")
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if why == "" {
			why = err.Error()
		}
		return fmt.Errorf("start the service of %s: %s (its log is %s)", host, why, p.log(host))
	}
	return nil
}

// waitReady waits until a host's service, which runs, answers. It is not ready if it
// has ended before.
func (p paths) waitReady(ctx context.Context, host string, pid int) (ready bool, err error) {
	for now := pid; now == pid; {
		if c, err := net.Dial("unix", filepath.Join(p.runOf(host), "trellis.sock")); err == nil {
			return true, c.Close()
		}
		select {
		case <-ctx.Done():
			return false, fmt.Errorf("wait for the service of %s (process %d): %w", host, pid, context.Cause(ctx))
		case <-time.After(10 * time.Millisecond):
		}
		if now, err = serve.Running(p.service(host)); err != nil {
			return false, err
		}
	}
	return false, nil
}

// environment is this process's without what names another service.
func environment() []string {
	var env []string
	for _, v := range os.Environ() {
		switch name, _, _ := strings.Cut(v, "="); name {
		case "TRELLIS_ADDRESS", "TRELLIS_RUN_DIR", "TRELLIS_STATE_DIR":
		default:
			env = append(env, v)
		}
	}
	return env
}

// Kill ends the service of a host without warning, as a crash would. What it has
// built goes on. It reports whether there was one to kill.
func (p Place) Kill(ctx context.Context, sandbox, host string) (killed bool, err error) {
	err = p.withHosts(ctx, sandbox, []string{host}, func(at paths, _ *Spec, hosts []string) error {
		pid, err := serve.Running(at.service(hosts[0]))
		if err != nil || pid == 0 {
			return err
		}
		killed = true
		return serve.Kill(at.service(hosts[0]))
	})
	return killed && err == nil, err
}

// Start starts the services of hosts again, side by side, or with none named those of
// all hosts. It names those that ran already.
func (p Place) Start(ctx context.Context, sandbox string, hosts ...string) (ran []string, err error) {
	err = p.withHosts(ctx, sandbox, hosts, func(at paths, s *Spec, hosts []string) error {
		started := make([]bool, len(hosts))
		g, ctx := errgroup.WithContext(ctx)
		for i, host := range hosts {
			g.Go(func() error {
				ns, err := openSpace(at.pin(host))
				if errors.Is(err, fs.ErrNotExist) {
					return fmt.Errorf("sandbox %s is not complete; `trellis sandbox up FILE` completes it", s.Name)
				} else if err != nil {
					return err
				}
				defer ns.close()
				started[i], err = at.start(ctx, host, ns)
				return err
			})
		}
		err := g.Wait()
		for i, host := range hosts {
			if err == nil && !started[i] {
				ran = append(ran, host)
			}
		}
		return err
	})
	return ran, err
}

// withHosts does something about hosts, none of whom goes meanwhile; with none named,
// about all.
func (p Place) withHosts(ctx context.Context, sandbox string, hosts []string, f func(paths, *Spec, []string) error) error {
	p, err := p.absolute()
	if err != nil {
		return err
	}
	unlock, err := p.share(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	name, err := p.pick(sandbox)
	if err != nil {
		return err
	}
	at := p.paths(name)
	s, err := at.spec(name)
	if err != nil {
		return err
	}
	for _, host := range hosts {
		if _, err := s.index(host); err != nil {
			return err
		}
	}
	if len(hosts) == 0 {
		for _, h := range s.Hosts {
			hosts = append(hosts, h.Name)
		}
	}
	return f(at, s, hosts)
}
