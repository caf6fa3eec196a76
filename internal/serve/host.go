package serve

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"trellis/internal/store"
)

// Files of the state directory that say which substrate node this is.
const (
	hostFile  = "host"     // its name
	idFile    = "id"       // of the state directory
	storeFile = "store-id" // identity of the store elsewhere that it belongs to
)

// clockEvery is how often the machine's clock is compared with the store's.
const clockEvery = time.Minute

// notInNames is what machines may be called and substrate nodes may not.
var notInNames = regexp.MustCompile(`[^A-Za-z0-9._-]+`)

// host is the name of this substrate node. It is fixed once the host has had it
// (see rememberIdentity), because plans are stored under it and the machine may be renamed.
func (c Config) host() (string, error) {
	path := filepath.Join(c.StateDir, hostFile)
	fixed, err := readLine(path)
	if err != nil {
		return "", fmt.Errorf("name of this substrate node: %w", err)
	}
	wanted := c.Settings.Host
	switch {
	case fixed != "" && wanted != "" && fixed != wanted:
		return "", fmt.Errorf("%s says `host: %s`, and this host is %q in the store: name it so, or take its networks down, remove %s and start again",
			c.Settings.File, wanted, fixed, path)
	case fixed != "":
		return fixed, nil
	case wanted == "":
		if wanted, err = os.Hostname(); err != nil {
			return "", fmt.Errorf("name of this substrate node: %w", err)
		}
		wanted = strings.Trim(notInNames.ReplaceAllString(wanted, "-"), "._-")
		if wanted == "" {
			wanted = "localhost"
		}
	}
	return wanted, nil
}

// readLine gives what a file holds, without the line's end; "" where it is not
// there.
func readLine(path string) (string, error) {
	b, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	return strings.TrimSpace(string(b)), nil
}

// id distinguishes this state directory, since the machine was booted, from any other.
func (c Config) id() (string, error) {
	path := filepath.Join(c.StateDir, idFile)
	own, err := readLine(path)
	if err != nil {
		return "", fmt.Errorf("id of this substrate node: %w", err)
	}
	if own == "" {
		own = rand.Text()
		if err := os.WriteFile(path, []byte(own+"\n"), 0o600); err != nil {
			return "", fmt.Errorf("id of this substrate node: %w", err)
		}
	}
	boot, err := readLine("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("id of this substrate node: %w", err)
	}
	return own + "@" + boot, nil
}

// describe says what the host has, for the store.
func (c Config) describe(name string) (store.Host, error) {
	id, err := c.id()
	if err != nil {
		return store.Host{}, err
	}
	h := store.Host{
		Name: name, ID: id, Instance: c.Instance, Version: c.Version,
		Memory: c.Settings.Memory, CPU: c.Settings.CPU,
	}
	if h.Memory == 0 {
		var info unix.Sysinfo_t
		if err := unix.Sysinfo(&info); err != nil {
			return store.Host{}, fmt.Errorf("look at the machine's memory: %w", err)
		}
		h.Memory = int64(info.Totalram) * int64(info.Unit)
	}
	if h.CPU == 0 {
		h.CPU = float64(runtime.NumCPU())
	}
	return h, nil
}

// publishHost publishes this host, and returns when the store has it.
func (s *service) publishHost(ctx context.Context) error {
	u := s.agent.Underlay()
	s.publishClock(s.store.ClockMessage(ctx))
	s.registration.Update(func(h *store.Host) {
		h.API = s.config.Settings.Listen
		h.Addrs, h.MTU, h.Uplinks = u.Addrs, u.MTU, u.Uplinks
	})
	return s.registration.Flush(ctx)
}

// publishChanges publishes changes, until ctx ends or the host has lost its
// name.
func (s *service) publishChanges(ctx context.Context) error {
	clock := time.NewTicker(clockEvery)
	defer clock.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.registration.Done():
			return s.registration.Err()
		case <-s.agent.UnderlayChanged():
			u := s.agent.Underlay()
			s.registration.Update(func(h *store.Host) { h.Addrs, h.MTU, h.Uplinks = u.Addrs, u.MTU, u.Uplinks })
		case <-clock.C:
			s.publishClock(s.store.ClockMessage(ctx))
		}
	}
}

// publishClock publishes what is wrong with the machine's clock, if that is news.
func (s *service) publishClock(message string) {
	if message == s.clockMessage {
		return
	}
	if s.clockMessage = message; message != "" {
		s.log.Warn(message)
	}
	s.registration.Update(func(h *store.Host) { h.Message = message })
}
