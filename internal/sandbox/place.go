package sandbox

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"trellis/internal/yamlfile"
)

// folder holds the sandboxes, in the run and in the state directory.
const folder = "sandbox"

// Place is where sandboxes are. Those of different places know nothing of each
// other.
type Place struct {
	RunDir   string // what ends with the machine: /run/trellis
	StateDir string // what stays: /var/lib/trellis
}

// Paths of one sandbox.
type paths struct{ run, state string }

func (p Place) paths(name string) paths {
	return paths{filepath.Join(p.RunDir, folder, name), filepath.Join(p.StateDir, folder, name)}
}

func (p paths) record() string            { return filepath.Join(p.state, "sandbox.json") }
func (p paths) stateLink() string         { return filepath.Join(p.run, "state") }
func (p paths) certs() string             { return filepath.Join(p.state, "certs") }
func (p paths) pins() string              { return filepath.Join(p.run, "netns") }
func (p paths) pin(space string) string   { return filepath.Join(p.pins(), space) }
func (p paths) runOf(host string) string  { return filepath.Join(p.run, host) }
func (p paths) homeOf(host string) string { return filepath.Join(p.state, host) }
func (p paths) config(host string) string { return filepath.Join(p.homeOf(host), "trellis.yaml") }
func (p paths) log(host string) string    { return filepath.Join(p.homeOf(host), "trellis.log") }

// instance gives the tag of everything that a host's service owns on the
// machine. It follows from its run directory, so that it can be found again
// whatever else is lost.
func (p paths) instance(host string) string {
	sum := sha256.Sum256([]byte(p.runOf(host)))
	return strings.ToLower(base32.StdEncoding.EncodeToString(sum[:5]))
}

// absolute makes the directories independent of where the caller is.
func (p Place) absolute() (Place, error) {
	for _, dir := range []*string{&p.RunDir, &p.StateDir} {
		abs, err := filepath.Abs(*dir)
		if err != nil {
			return p, fmt.Errorf("directory %s: %w", *dir, err)
		}
		*dir = abs
	}
	return p, nil
}

// names lists the sandboxes, also those that are half made or half gone.
func (p Place) names() ([]string, error) {
	var all []string
	for _, top := range []string{p.RunDir, p.StateDir} {
		entries, err := os.ReadDir(filepath.Join(top, folder))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("list the sandboxes: %w", err)
		}
		for _, e := range entries {
			if e.IsDir() {
				all = append(all, e.Name())
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// pick gives the name of the sandbox that is meant: the one that is named, else
// the only one there is.
func (p Place) pick(name string) (string, error) {
	names, err := p.names()
	if err != nil {
		return "", err
	}
	switch {
	case name != "" && slices.Contains(names, name):
		return name, nil
	case name != "" && len(names) == 0:
		return "", fmt.Errorf("there is no sandbox %q, and no other; `trellis sandbox up FILE` makes one", yamlfile.Clip(name))
	case name != "":
		return "", fmt.Errorf("there is no sandbox %q; there is %s", yamlfile.Clip(name), strings.Join(names, ", "))
	case len(names) == 0:
		return "", ErrNone
	case len(names) > 1:
		return "", fmt.Errorf("there are several sandboxes (%s); name one of them", strings.Join(names, ", "))
	}
	return names[0], nil
}

// ErrNone says that there is no sandbox.
var ErrNone = errors.New("there is no sandbox; `trellis sandbox up FILE` makes one")

// load reads what a sandbox was made from.
func (p paths) load() (*Spec, error) {
	b, err := os.ReadFile(p.record())
	if err != nil {
		return nil, err
	}
	s := new(Spec)
	if err := json.Unmarshal(b, s); err != nil {
		return nil, fmt.Errorf("read %s: %w", p.record(), err)
	}
	return s, nil
}

// save writes it down, as a whole or not at all.
func (p paths) save(s *Spec) error {
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return writeFile(p.record(), append(b, '\n'), 0o644)
}

// writeFile puts a file in place as a whole.
func writeFile(path string, data []byte, mode os.FileMode) error {
	next := path + ".next"
	if err := os.WriteFile(next, data, mode); err != nil {
		return err
	}
	return os.Rename(next, path)
}

// spec is load, with a sentence for a sandbox that has no record.
func (p paths) spec(name string) (*Spec, error) {
	s, err := p.load()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("sandbox %s was never completed, or is half removed; `trellis sandbox down %s` removes the rest", name, name)
	}
	return s, err
}
