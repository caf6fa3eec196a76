package format

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
)

// Source is a file that a description refers to.
type Source struct {
	Path string // without links
	// Outside: it lies below none of the description's own folder, but below a
	// directory of Options.AllowPaths.
	Outside bool
}

// sources opens the files that a description refers to: below its folder, or below
// directories that the caller allows. Links count by where they lead: who runs the
// description may read more than who wrote it.
type sources struct {
	dir   string // the description's folder, as its path has it
	roots []string
	told  func(Source)
}

func newSources(description string, o Options) (*sources, error) {
	s := &sources{dir: filepath.Dir(description), told: o.Opened}
	for i, dir := range append([]string{s.dir}, o.AllowPaths...) {
		if i > 0 && dir == "" { // and not this directory, which nobody has named
			return nil, Error{File: "--allow-path", What: "no directory is named", Remedy: "name one"}
		}
		real, err := realPath(dir)
		if err == nil {
			var info os.FileInfo
			if info, err = os.Stat(real); err == nil && !info.IsDir() {
				err = &os.PathError{Op: "open", Path: dir, Err: syscall.ENOTDIR}
			}
		}
		if err != nil {
			e := openError(dir, err)
			if i > 0 {
				e.Remedy = "allow a directory that is there"
			}
			return nil, e
		}
		s.roots = append(s.roots, real)
	}
	return s, nil
}

// realPath is the absolute path of a file, without links.
func realPath(path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(abs)
}

// errOutside marks references that lead out of where they may.
var errOutside = errors.New("outside of the description's folder")

func (s *sources) open(path string, limit int64) ([]byte, error) {
	if !filepath.IsAbs(path) {
		path = filepath.Join(s.dir, path)
	}
	real, err := realPath(path)
	if err != nil {
		return nil, openError(path, err)
	}
	for i, root := range s.roots {
		rel, err := filepath.Rel(root, real)
		if err != nil || !filepath.IsLocal(rel) {
			continue
		}
		data, err := readBelow(root, rel, path, limit)
		if err == nil && s.told != nil {
			s.told(Source{Path: real, Outside: i > 0})
		}
		return data, err
	}
	return nil, Error{
		File: path, Err: errOutside,
		What:   fmt.Sprintf("it leads to %s, outside of the description's folder %s", real, s.roots[0]),
		Remedy: fmt.Sprintf("put the file there, or allow it with --allow-path %s", filepath.Dir(real)),
	}
}

// readBelow reads a regular file below root, wherever a link may lead by now.
func readBelow(root, rel, name string, limit int64) ([]byte, error) {
	dir, err := os.OpenRoot(root)
	if err != nil {
		return nil, openError(name, err)
	}
	defer dir.Close()
	f, err := dir.OpenFile(rel, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil, openError(name, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, openError(name, err)
	}
	if !info.Mode().IsRegular() {
		return nil, Error{File: name, What: "it is no regular file", Remedy: "name a file"}
	}
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, openError(name, err)
	}
	if int64(len(data)) > limit {
		return nil, Errors{tooLarge(name, limit)}
	}
	return data, nil
}
