package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"trellis/internal/store"
)

// What a service does with a store that is not the one that made what runs on the
// machine: its plans know nothing of that, and the agent would remove all of it.
// Unless it is told which, it does not start.
type foreignStore int

const (
	refuseForeign foreignStore = iota
	adoptForeign               // start, and leave alone what no plan mentions
	purgeForeign               // start, and remove what no plan mentions
)

func (c Config) foreign() foreignStore {
	switch {
	case c.Adopt:
		return adoptForeign
	case c.RemoveAll:
		return purgeForeign
	}
	return refuseForeign
}

// remedies says how to go on with another store than before.
const remedies = "`trellis serve --adopt` starts with this store and leaves what runs here alone, " +
	"`trellis serve --remove-all` starts with it and removes what it does not know"

// rememberIdentity writes down, for all starts to come, the host's name and the store
// that has made what runs here. Before, nothing of either is here: a start that is
// refused can be tried with others. The store is noted in the run directory too: that
// lives as long as what runs, also where the whole state directory is lost.
func (c Config) rememberIdentity(host, store string) error {
	for path, line := range map[string]string{
		filepath.Join(c.StateDir, hostFile): host, c.storeNotes()[0]: store, c.storeNotes()[1]: store,
	} {
		if have, err := readLine(path); err == nil && (have == line || line == "") {
			continue
		}
		mode := os.FileMode(0o600)
		if filepath.Base(path) == hostFile {
			mode = 0o644
		}
		if err := os.WriteFile(path, []byte(line+"\n"), mode); err != nil {
			return fmt.Errorf("remember the host's name and its store: %w", err)
		}
	}
	return nil
}

// storeNotes are the files that hold the store's identity.
func (c Config) storeNotes() [2]string {
	return [2]string{filepath.Join(c.StateDir, storeFile), filepath.Join(c.RunDir, storeFile)}
}

// lastStore gives the identity of the store of the last start, and where it is noted;
// "" where there was none.
func (c Config) lastStore() (identity, path string, err error) {
	for _, path := range c.storeNotes() {
		if identity, err = readLine(path); err != nil {
			return "", "", fmt.Errorf("remember the store: %w", err)
		}
		if identity != "" {
			return identity, path, nil
		}
	}
	return "", "", nil
}

// checkStoreThere refuses to make a new store in the place of one that is lost, before
// anything is made: it can still be put back.
func (c Config) checkStoreThere() error {
	if len(c.Settings.StoreEndpoints) > 0 || c.foreign() != refuseForeign {
		return nil
	}
	before, path, err := c.lastStore()
	if err != nil || before == "" {
		return err
	}
	there, err := store.Exists(c.storeDir())
	if err != nil || there {
		return err
	}
	return fmt.Errorf("the store of this host's networks is not in %s any more (its identity is in %s): put it back, name it under `store:` in the configuration if it is elsewhere now, or restore a copy by `trellis store restore FILE`, and start again. Without it, %s",
		c.storeDir(), path, remedies)
}

// checkStore refuses another store than that of the last start. It gives the store's
// identity.
func (c Config) checkStore(ctx context.Context, s *store.Store, log *slog.Logger) (string, error) {
	now, err := s.Identity(ctx)
	if err != nil {
		return "", err
	}
	before, path, err := c.lastStore()
	if err != nil {
		return "", err
	}
	elsewhere := len(c.Settings.StoreEndpoints) > 0
	switch how := c.foreign(); {
	case before == now:
		return now, nil
	case how != refuseForeign:
		if before != "" {
			log.Warn("this store has not made what runs on this machine", "store", now, "before", before, "removed", how == purgeForeign)
		}
		return now, nil
	case store.RestoredFrom(now, before):
		return "", fmt.Errorf("%s was restored from a copy, and may not know all that runs here: %s", StoreOf(c), remedies)
	case elsewhere:
		left, err := c.leaveOwnStore(ctx, before, now)
		if err != nil || left {
			return now, err
		}
		return "", fmt.Errorf("the store at %s is another one than this host's networks are in (%s): name that one in %s. Otherwise, %s",
			strings.Join(c.Settings.StoreEndpoints, ", "), path, c.Settings.File, remedies)
	case before == "":
		return now, nil
	}
	return "", fmt.Errorf("the store in %s is another one than this host's networks are in (%s): put that one back, or name it under `store:` in the configuration if it is elsewhere. Otherwise, %s",
		c.storeDir(), path, remedies)
}

// leaveOwnStore reports whether the host was on a store of its own before, or on none,
// and may leave that for one elsewhere: there are no networks in it, or the other one
// has been made of it. It is an error where there are.
func (c Config) leaveOwnStore(ctx context.Context, before, other string) (bool, error) {
	if there, err := store.Exists(c.storeDir()); err != nil || !there {
		return before == "", err
	}
	own, err := store.Open(ctx, store.Options{Dir: c.storeDir(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return false, fmt.Errorf("look for networks in the store that this host had before: %w", err)
	}
	identity, err := own.Identity(ctx)
	names, err2 := own.Names(ctx)
	if err := errors.Join(err, err2, own.Close()); err != nil {
		return false, fmt.Errorf("look for networks in the store that this host had before: %w", err)
	}
	switch {
	case before != "" && before != identity:
		return false, nil
	case len(names) == 0 || identity == other:
		return true, nil
	}
	return false, fmt.Errorf("this host has networks in a store of its own (%s), which the one at %s does not know: take them down first, without `store:` in %s. Otherwise, %s",
		strings.Join(names, ", "), strings.Join(c.Settings.StoreEndpoints, ", "), c.Settings.File, remedies)
}
