package cli

import (
	"fmt"
	"io"
	"os"
	"strings"

	"trellis/internal/format"
	"trellis/internal/vnet"
)

// stdin stands for standard input where a verb takes a file.
const stdin = "-"

// load reads a description of a network and tells its warnings. Whatever is
// wrong with it is an input error.
func (e *Env) load(path string) (*vnet.VNet, error) {
	v, warnings, err := e.read(path)
	for _, w := range warnings {
		fmt.Fprintln(e.Stderr, w)
	}
	if err != nil {
		return nil, &inputError{err}
	}
	return v, nil
}

func (e *Env) read(path string) (*vnet.VNet, []format.Warning, error) {
	if path != stdin {
		return format.Load(path)
	}
	data, err := io.ReadAll(io.LimitReader(e.Stdin, format.MaxFile+1))
	if err != nil {
		return nil, nil, fmt.Errorf("standard input: %w", err)
	}
	return format.Read("standard input", data, nil)
}

// isFile reports whether the argument of a verb that takes VNET or FILE is a
// file: the name of a network has neither dots nor slashes.
func isFile(arg string) bool {
	if arg == stdin || strings.ContainsAny(arg, "./") {
		return true
	}
	info, err := os.Stat(arg)
	return err == nil && info.Mode().IsRegular()
}
