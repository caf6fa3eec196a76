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

// host is the name of this substrate node. It is fixed at the first start,
// because plans are stored under it and the machine may be renamed.
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
	if err := os.WriteFile(path, []byte(wanted+"\n"), 0o644); err != nil {
		return "", fmt.Errorf("name of this substrate node: %w", err)
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

// id tells this state directory, since the machine was booted, from any other.
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

// belong refuses a store elsewhere that is another one than the last time: its
// plans know nothing of what runs here, and the agent would remove all of it.
func (c Config) belong(ctx context.Context, s *store.Store) error {
	if len(c.Settings.StoreEndpoints) == 0 {
		return nil
	}
	now, err := s.Identity(ctx)
	if err != nil {
		return err
	}
	path := filepath.Join(c.StateDir, storeFile)
	before, err := readLine(path)
	if err != nil {
		return fmt.Errorf("remember the store: %w", err)
	}
	switch before {
	case now:
		return nil
	case "":
		if err := os.WriteFile(path, []byte(now+"\n"), 0o600); err != nil {
			return fmt.Errorf("remember the store: %w", err)
		}
		return nil
	}
	return fmt.Errorf("the store at %s is another one than this host's networks are in: name that one in %s, or remove %s to join this one, which takes down what it does not know",
		strings.Join(c.Settings.StoreEndpoints, ", "), c.Settings.File, path)
}

// announce tells the others of this host, and returns when the store has it.
func (s *service) announce(ctx context.Context) error {
	u := s.agent.Underlay()
	s.alive.Update(func(h *store.Host) {
		h.API = s.config.Settings.Listen
		h.Addrs, h.MTU, h.Uplinks = u.Addrs, u.MTU, u.Uplinks
		h.Message = s.store.ClockMessage(ctx)
	})
	return s.alive.Flush(ctx)
}

// keepKnown tells the others of changes, until ctx ends or the host has lost its
// name.
func (s *service) keepKnown(ctx context.Context) error {
	clock := time.NewTicker(clockEvery)
	defer clock.Stop()
	said := ""
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.alive.Done():
			return s.alive.Err()
		case <-s.agent.UnderlayChanged():
			u := s.agent.Underlay()
			s.alive.Update(func(h *store.Host) { h.Addrs, h.MTU, h.Uplinks = u.Addrs, u.MTU, u.Uplinks })
		case <-clock.C:
			message := s.store.ClockMessage(ctx)
			if message == said {
				continue
			}
			if said = message; message != "" {
				s.log.Warn(message)
			}
			s.alive.Update(func(h *store.Host) { h.Message = message })
		}
	}
}
