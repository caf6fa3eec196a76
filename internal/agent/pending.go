package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"trellis/internal/substrate/port"
)

// A device gets its alias, and with it its owner, only after it is made. What is
// about to be made is therefore written down first, in the run directory, so
// that after a crash in between the nameless ones are found and removed.

func (a *Agent) pendingDir() string { return filepath.Join(a.cfg.RunDir, "pending") }

// notePending writes down the devices of a VNet that are about to be made. The
// returned function takes the note away once they have their aliases.
func (a *Agent) notePending(vnet string, devices []string) (done func() error, err error) {
	if err := a.removePending(vnet); err != nil {
		return nil, err
	}
	// What has such a name already is a stranger's, and stays so.
	taken, err := a.devices.Indexes(devices...)
	if err != nil {
		return nil, err
	}
	devices = slices.DeleteFunc(slices.Clone(devices), func(d string) bool { return taken[d] != 0 })
	b, err := json.Marshal(devices)
	if err != nil {
		return nil, err
	}
	note := filepath.Join(a.pendingDir(), vnet)
	if err := os.WriteFile(note, b, 0o600); err != nil {
		return nil, fmt.Errorf("note what is about to be made: %w", err)
	}
	return func() error { return os.Remove(note) }, nil
}

// removePending removes what a note says was being made and has no owner yet.
func (a *Agent) removePending(vnet string) error {
	note := filepath.Join(a.pendingDir(), vnet)
	b, err := os.ReadFile(note)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var devices []string
	// A note that was cut short was being written: nothing was made after it.
	if json.Unmarshal(b, &devices) == nil {
		if err := port.DeleteNameless(devices...); err != nil {
			return fmt.Errorf("remove the devices of %s that were being made: %w", vnet, err)
		}
	}
	return os.Remove(note)
}

// removeAllPending does so for every VNet, when the agent starts.
func (a *Agent) removeAllPending() error {
	if err := os.MkdirAll(a.pendingDir(), 0o700); err != nil {
		return err
	}
	notes, err := os.ReadDir(a.pendingDir())
	if err != nil {
		return err
	}
	for _, n := range notes {
		if err := a.removePending(n.Name()); err != nil {
			return err
		}
	}
	return nil
}
