package serve

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
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
// (see settle), because plans are stored under it and the machine may be renamed.
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

// settle writes down, for all starts to come, the host's name and the store that
// it belongs to, if it is one elsewhere. Before, nothing of either is here: a start
// that is refused can be tried with others.
func (c Config) settle(host, store string) error {
	for file, line := range map[string]string{hostFile: host, storeFile: store} {
		path := filepath.Join(c.StateDir, file)
		if have, err := readLine(path); err == nil && (have == line || line == "") {
			continue
		}
		mode := os.FileMode(0o600)
		if file == hostFile {
			mode = 0o644
		}
		if err := os.WriteFile(path, []byte(line+"\n"), mode); err != nil {
			return fmt.Errorf("remember the host's name and its store: %w", err)
		}
	}
	return nil
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

// belong refuses another store than the last time: its plans know nothing of what
// runs here, and the agent would remove all of it. It gives the identity of a store
// elsewhere; "" for that of this process.
func (c Config) belong(ctx context.Context, s *store.Store) (string, error) {
	now, err := s.Identity(ctx)
	if err != nil {
		return "", err
	}
	path := filepath.Join(c.StateDir, storeFile)
	before, err := readLine(path)
	elsewhere := len(c.Settings.StoreEndpoints) > 0
	switch {
	case err != nil:
		return "", fmt.Errorf("remember the store: %w", err)
	case !elsewhere && (before == now || before == ""):
		return "", nil
	case before == now:
		return now, nil
	case before == "":
		return now, c.leave(ctx, now)
	case !elsewhere:
		return "", fmt.Errorf("this host's networks are in a store elsewhere, and the configuration names none: write store: {endpoints: […]}, or remove %s to start with a store of its own, which takes down what it does not know", path)
	}
	return "", fmt.Errorf("the store at %s is another one than this host's networks are in: name that one in %s, or remove %s to join this one, which takes down what it does not know",
		strings.Join(c.Settings.StoreEndpoints, ", "), c.Settings.File, path)
}

// leave refuses to leave the host's own store while there are networks in it, unless
// the other one has been made of it.
func (c Config) leave(ctx context.Context, other string) error {
	if _, err := os.Stat(c.storeDir()); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	own, err := store.Open(ctx, store.Options{Dir: c.storeDir(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return fmt.Errorf("look for networks in the store that this host had before: %w", err)
	}
	identity, err := own.Identity(ctx)
	records, err2 := own.VNets(ctx)
	if err := errors.Join(err, err2, own.Close()); err != nil {
		return fmt.Errorf("look for networks in the store that this host had before: %w", err)
	}
	if len(records) == 0 || identity == other {
		return nil
	}
	var names []string
	for _, rec := range records {
		names = append(names, rec.Name())
	}
	return fmt.Errorf("this host has networks in a store of its own (%s), which the one at %s does not know: take them down first, without `store:` in %s, or move %s away, which has them taken down",
		strings.Join(names, ", "), strings.Join(c.Settings.StoreEndpoints, ", "), c.Settings.File, c.storeDir())
}

// announce tells the others of this host, and returns when the store has it.
func (s *service) announce(ctx context.Context) error {
	u := s.agent.Underlay()
	s.sayClock(s.store.ClockMessage(ctx))
	s.alive.Update(func(h *store.Host) {
		h.API = s.config.Settings.Listen
		h.Addrs, h.MTU, h.Uplinks = u.Addrs, u.MTU, u.Uplinks
	})
	return s.alive.Flush(ctx)
}

// keepKnown tells the others of changes, until ctx ends or the host has lost its
// name.
func (s *service) keepKnown(ctx context.Context) error {
	clock := time.NewTicker(clockEvery)
	defer clock.Stop()
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
			s.sayClock(s.store.ClockMessage(ctx))
		}
	}
}

// sayClock tells what is wrong with the machine's clock, if that is news.
func (s *service) sayClock(message string) {
	if message == s.said {
		return
	}
	if s.said = message; message != "" {
		s.log.Warn(message)
	}
	s.alive.Update(func(h *store.Host) { h.Message = message })
}
