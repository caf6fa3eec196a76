// Package format reads and writes descriptions of virtual networks: the native
// YAML, and GraphML as the Internet Topology Zoo has it.
//
// What a reader returns is completed and validated. A bad file is refused
// whole, with an [Errors] that has the line, what is wrong and what to do, for
// every mistake that was found. Readers are pure but for [Load], bounded in time and
// memory on any bytes, and give the same network for the same bytes every time.
package format

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"trellis/internal/vnet"
)

// MaxFile is the largest file that is read, in bytes. A network of 10,000 nodes
// and 50,000 links takes about half of it.
const MaxFile = 8 << 20

// Options change how a file is read.
type Options struct {
	// Set holds settings of the form KEY=VALUE, as in routing.protocol=static: they
	// take the place of what the file says, before anything is completed, whatever
	// its format. Their mistakes are reported like those of the file.
	Set []string
	// Machine refuses what that machine lacks, too; nil: any machine will do.
	Machine *vnet.Machine
	// AllowPaths are directories, beside the description's own folder, below which the
	// files may lie that it refers to. They are for [Load].
	AllowPaths []string
	// Opened, where it is set, is called with each file that was read so.
	Opened func(Source)
	// folder is the description's, where it is known: relative paths of images start there.
	folder string
}

// Open opens a file that a description refers to, by the path that is written
// there. It must refuse to return more than limit bytes.
type Open func(path string, limit int64) ([]byte, error)

// Load reads a network from a file, as its extension says: .yaml and .yml are
// native YAML, .graphml and .xml are GraphML; any other name is judged by the
// file's first byte. Files that the description refers to are looked up from the
// description's folder, and lie below it (see Options.AllowPaths). Relative paths of
// images start in that folder, too, and may lead anywhere: who reads images has rules
// of its own for where they lie.
func Load(path string, o ...Options) (*vnet.VNet, []Warning, error) {
	data, err := readLimited(path, MaxFile)
	if err != nil {
		return nil, nil, err
	}
	var options Options
	if len(o) > 0 {
		options = o[0]
	}
	from, err := newSources(path, options)
	if err != nil {
		return nil, nil, err
	}
	if options.folder, err = filepath.Abs(from.dir); err != nil {
		return nil, nil, openError(from.dir, err)
	}
	return Read(path, data, from.open, options)
}

// Read reads a network from bytes. The name is that of the file, for its
// extension and for messages. With a nil open, references to files are refused.
func Read(name string, data []byte, open Open, o ...Options) (*vnet.VNet, []Warning, error) {
	var options Options
	if len(o) > 0 {
		options = o[0]
	}
	if len(data) > MaxFile {
		return nil, nil, Errors{tooLarge(name, MaxFile)}
	}
	switch strings.ToLower(filepath.Ext(name)) {
	case ".yaml", ".yml":
		return readYAML(name, data, open, options)
	case ".graphml", ".xml":
		return readGraphML(name, data, options)
	}
	if text := bytes.TrimLeft(bytes.TrimPrefix(data, []byte("\ufeff")), " \t\r\n"); bytes.HasPrefix(text, []byte("<")) {
		return readGraphML(name, data, options)
	}
	return readYAML(name, data, open, options)
}

// readLimited reads a regular file (or a pipe) of at most limit bytes.
func readLimited(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, openError(path, err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, openError(path, err)
	}
	if int64(len(data)) > limit {
		return nil, Errors{tooLarge(path, limit)}
	}
	return data, nil
}

func tooLarge(file string, limit int64) Error {
	return Error{File: file, What: fmt.Sprintf("the file is larger than %s", vnet.FormatSize(limit)), Remedy: "split the network, or keep large files in images", Err: errTooLarge}
}

var errTooLarge = errors.New("file too large")

func openError(path string, err error) Error {
	what, remedy := err.Error(), "check the path and its permissions"
	var pathErr *os.PathError
	if errors.As(err, &pathErr) {
		what = "cannot be read: " + pathErr.Err.Error()
	}
	if errors.Is(err, os.ErrNotExist) {
		what, remedy = "there is no such file", "check the path"
	}
	return Error{File: path, What: what, Remedy: remedy, Err: err}
}

// modelErrors completes and validates a description and gives what is wrong with
// it, by the objects' paths in the model.
func modelErrors(v *vnet.VNet, machine *vnet.Machine) (vnet.Errors, error) {
	var all vnet.Errors
	for _, err := range []error{v.Complete(), v.Validate()} {
		var list vnet.Errors
		switch {
		case err == nil:
		case errors.As(err, &list):
			all = append(all, list...)
		default:
			return nil, err
		}
	}
	if machine != nil && len(all) == 0 {
		all = v.Unsupported(*machine)
	}
	return all, nil
}

// finish completes and validates what a reader has built, and maps what is wrong
// to lines of the file.
func finish(file string, v *vnet.VNet, lines places, machine *vnet.Machine) error {
	list, err := modelErrors(v, machine)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	var errs Errors
	for _, e := range list {
		errs = append(errs, Error{File: file, Line: lines.line(e.Path), What: e.What, Remedy: e.Remedy})
	}
	return errs.Err()
}
