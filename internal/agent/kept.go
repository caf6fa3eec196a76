package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Networks that run here and that no plan mentions are removed, but for those that
// were there when the service was told to go on with another store (`trellis serve
// --adopt`). These are named in a file of the run directory, in the form of
// subuid(5), NAME:FIRST:COUNT, with the user ids of their nodes, which must not be
// given to others meanwhile. They stay until `trellis up` brings a network of the
// name, or all that is in no plan is removed.

// updateKept writes down what is kept, or that nothing is.
func (a *Agent) updateKept() error {
	switch {
	case a.cfg.RemoveAll:
		return a.clearKept()
	case !a.cfg.Adopt:
		return nil
	}
	owners, err := a.owners()
	if err != nil {
		return fmt.Errorf("look for what runs here: %w", err)
	}
	states, err := a.containers.List(context.Background())
	if err != nil {
		return fmt.Errorf("look for what runs here: %w", err)
	}
	ids := map[string]string{} // FIRST:COUNT by VNet
	for _, s := range states {
		if s.Running && ids[s.VNet] == "" {
			if ids[s.VNet], err = idRange(s.Pid); err != nil {
				return fmt.Errorf("user ids of %s: %w", s.ID, err)
			}
		}
	}
	var lines []string
	for vnet := range owners {
		own := ids[vnet]
		if own == "" {
			own = "0:0" // no node of it runs
		}
		lines = append(lines, vnet+":"+own+"\n")
	}
	slices.Sort(lines)
	draft := a.cfg.KeepFile + ".new"
	if err := os.WriteFile(draft, []byte(strings.Join(lines, "")), 0o600); err != nil {
		return fmt.Errorf("write down what is kept: %w", err)
	}
	return os.Rename(draft, a.cfg.KeepFile)
}

// idRange gives the host's ids that a process's own are mapped to, FIRST:COUNT; ""
// where it has just ended.
func idRange(pid int) (string, error) {
	text, err := os.ReadFile(filepath.Join("/proc", fmt.Sprint(pid), "uid_map"))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	} else if err != nil {
		return "", err
	}
	var inside, first, count uint32
	if _, err := fmt.Sscan(string(text), &inside, &first, &count); err != nil {
		return "", fmt.Errorf("uid_map %q: %w", text, err)
	}
	return fmt.Sprintf("%d:%d", first, count), nil
}

// kept gives the networks that are left alone without a plan.
func (a *Agent) kept() (map[string]bool, error) {
	kept := map[string]bool{}
	text, err := os.ReadFile(a.cfg.KeepFile)
	if errors.Is(err, fs.ErrNotExist) {
		return kept, nil
	} else if err != nil {
		return nil, fmt.Errorf("read what is kept: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		if vnet, _, ok := strings.Cut(line, ":"); ok {
			kept[vnet] = true
		}
	}
	return kept, nil
}

// clearKept has nothing kept any more.
func (a *Agent) clearKept() error {
	if err := os.Remove(a.cfg.KeepFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget what is kept: %w", err)
	}
	return nil
}
