// Package imports holds the packages of Trellis to the rules of rules.txt: each
// layer knows only the ones below it.
package imports

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "trellis/"

//go:embed rules.txt
var rulesText string

// rules maps a room to what it may import, and a library, written "only LIBRARY",
// to the rooms that alone may import it.
type rules map[string][]string

// only starts the line of a library.
const only = "only "

func parseRules(text string) (rules, error) {
	r := make(rules)
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		if strings.TrimSpace(line) == "" {
			continue
		}
		room, allowed, ok := strings.Cut(line, ":")
		if !ok {
			return nil, fmt.Errorf("rules.txt: no colon in %q", line)
		}
		if _, twice := r[room]; twice {
			return nil, fmt.Errorf("rules.txt: %s has two lines", room)
		}
		r[room] = strings.Fields(allowed)
	}
	return r, nil
}

// within reports whether a package is a folder or lies below it.
func within(pkg, folder string) bool {
	return pkg == folder || strings.HasPrefix(pkg, folder+"/")
}

// room returns the longest room that a package is in.
func (r rules) room(pkg string) (string, bool) {
	best, found := "", false
	for room := range r {
		if within(pkg, room) && len(room) >= len(best) {
			best, found = room, true
		}
	}
	return best, found
}

// check returns what is wrong with one package's imports; all are relative to
// the module.
func (r rules) check(pkg string, imports []string) error {
	from, ok := r.room(pkg)
	if !ok {
		return fmt.Errorf("%s is in no room: add it to test/imports/rules.txt", pkg)
	}
	var errs []error
	for _, to := range imports {
		if !r.allows(from, to) {
			errs = append(errs, fmt.Errorf("%s must not import %s: %s may import only %q (test/imports/rules.txt)", pkg, to, from, r[from]))
		}
	}
	return errors.Join(errs...)
}

// checkLibraries is check for what a package imports from other modules.
func (r rules) checkLibraries(pkg string, imports []string) error {
	var errs []error
	for line, rooms := range r {
		library, ok := strings.CutPrefix(line, only)
		if !ok || slices.ContainsFunc(rooms, func(room string) bool { return within(pkg, room) }) {
			continue
		}
		for _, to := range imports {
			if within(to, library) {
				errs = append(errs, fmt.Errorf("%s must not import %s: only %q may (test/imports/rules.txt)", pkg, to, rooms))
			}
		}
	}
	return errors.Join(errs...)
}

// allows reports whether the packages of a room may import a package: one of
// the same room, or of what its line names.
func (r rules) allows(from, to string) bool {
	if same, ok := r.room(to); ok && same == from {
		return true
	}
	for _, allowed := range r[from] {
		if folder, ok := strings.CutSuffix(allowed, "/*"); ok {
			if to != folder && within(to, folder) {
				return true
			}
		} else if within(to, allowed) {
			return true
		}
	}
	return false
}

func TestImportsFollowTheRules(t *testing.T) {
	r, err := parseRules(rulesText)
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("go", "list", "-json=ImportPath,Imports,GoFiles", module+"...").Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("go list: %v\n%s", err, exit.Stderr)
		}
		t.Fatalf("go list: %v", err)
	}
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct {
			ImportPath string
			Imports    []string
			GoFiles    []string
		}
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if len(p.GoFiles) == 0 {
			continue // tests alone
		}
		var own []string
		for _, i := range p.Imports {
			if rest, ok := strings.CutPrefix(i, module); ok {
				own = append(own, rest)
			}
		}
		pkg := strings.TrimPrefix(p.ImportPath, module)
		if err := errors.Join(r.check(pkg, own), r.checkLibraries(pkg, p.Imports)); err != nil {
			t.Error(err)
		}
	}
}

func TestRulesCatchAWrongImport(t *testing.T) {
	r, err := parseRules("a: b c/*\nb:\nc:\na/inner:\n")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		pkg, to string
		ok      bool
	}{
		{"a", "b", true},
		{"a", "b/deep", true},
		{"a", "c/one", true},
		{"a", "c", false},
		{"a", "bb", false},
		{"a/sub", "a", true},
		{"a/sub", "a/inner", false},
		{"a/inner", "b", false},
		{"b", "a", false},
		{"d", "a", false},
	} {
		if err := r.check(c.pkg, []string{c.to}); (err == nil) != c.ok {
			t.Errorf("%s importing %s: %v, want allowed: %t", c.pkg, c.to, err, c.ok)
		}
	}
}

func TestRulesCatchAWrongLibrary(t *testing.T) {
	r, err := parseRules("only example.org/x: a b\na:\n")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		pkg, to string
		ok      bool
	}{
		{"a", "example.org/x", true},
		{"b/sub", "example.org/x/y", true},
		{"c", "example.org/x", false},
		{"c", "example.org/x/y", false},
		{"c", "example.org/xy", true},
	} {
		if err := r.checkLibraries(c.pkg, []string{c.to}); (err == nil) != c.ok {
			t.Errorf("%s importing %s: %v, want allowed: %t", c.pkg, c.to, err, c.ok)
		}
	}
}
