package container

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Init keeps what services print in the node's own file system, where the node's root
// can replace, lengthen or remove it. So it is read as a stranger's: a regular file
// below the node's root, no more than maxLogRead of it at a time, and never waited for.
const (
	logDir     = "run/trellis"
	maxLogRead = 64 << 10
)

// followEvery is how often a followed log is looked at.
const followEvery = 250 * time.Millisecond

// LogQuery says what of a node's logs to read.
type LogQuery struct {
	Service string // empty: all services, one after the other
	Tail    int    // so many lines of each at most; 0: all that is kept
	// Follow goes on with what comes, until the node ends, or the context.
	Follow bool
}

// Logs reads what the services of a running node have printed, in complete lines
// where the service prints them. It ends well when the context ends, once it has begun.
func (r *Runtime) Logs(ctx context.Context, id ID, q LogQuery, each func(service string, text []byte) error) error {
	c, err := r.loadRunning(id)
	if err != nil {
		return err
	}
	names := serviceNames(c)
	switch {
	case len(names) == 0:
		return &NoServiceError{fmt.Sprintf("node %s runs no service and no command, so that there is no log", id)}
	case q.Service != "" && !slices.Contains(names, q.Service):
		return &NoServiceError{fmt.Sprintf("node %s has no service %q; it has %s", id, q.Service, strings.Join(names, ", "))}
	}
	root, err := c.root()
	if err != nil {
		return err
	}
	defer root.Close()
	state, _ := r.Get(id)
	gone, err := r.Exited(state)
	if err != nil {
		return err
	}
	readers := map[string]*logReader{}
	for first := true; ; first = false {
		for _, name := range names {
			if q.Service != "" && name != q.Service {
				continue
			}
			l := readers[name]
			if l == nil {
				l = &logReader{root: root, path: logDir + "/" + name + ".log"}
				readers[name] = l
			}
			text, err := l.read()
			if err != nil {
				return fmt.Errorf("read the log of %s in %s: %w", name, id, err)
			}
			if first && q.Tail > 0 {
				text = lastLines(text, q.Tail)
			}
			if !q.Follow {
				text = append(text, l.rest...)
			}
			if len(text) > 0 {
				if err := each(name, text); err != nil {
					return err
				}
			}
		}
		if !q.Follow {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-gone:
			return nil
		case <-time.After(followEvery):
		}
		if c, err := r.load(id); err == nil { // services come and go
			names = serviceNames(c)
		}
	}
}

// NoServiceError says that a node has no such service.
type NoServiceError struct{ why string }

func (e *NoServiceError) Error() string { return e.why }

// serviceNames are those of a node's services, the image's command last.
func serviceNames(c *record) []string {
	var names []string
	if !c.Yields || c.Command == nil {
		for _, s := range c.Services {
			names = append(names, s.Name)
		}
	}
	if c.Command != nil {
		names = append(names, CommandName)
	}
	return names
}

// LastLine returns the last line that a service of a running node has printed; empty
// if there is none.
func (r *Runtime) LastLine(id ID, service string) string {
	var last string
	err := r.Logs(context.Background(), id, LogQuery{Service: service, Tail: 2}, func(_ string, text []byte) error {
		for line := range strings.Lines(string(text)) {
			// How it ended is init's line, and known besides.
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "trellis: ended ") {
				last = line
			}
		}
		return nil
	})
	if err != nil {
		return ""
	}
	return last
}

// logReader reads one log from where it has come to.
type logReader struct {
	root  *os.File
	path  string
	inode uint64 // of the file last read; 0: none yet
	at    int64
	rest  []byte // the begin of a line whose end is not there yet
}

// read returns the complete lines that have come, and keeps the begin of the next.
func (l *logReader) read() ([]byte, error) {
	current, size, inode, err := l.open(l.path)
	if err != nil || current == nil {
		return nil, err
	}
	defer current.Close()
	var text []byte
	if l.inode != inode { // the first time, or the log was full and is now the previous one
		previous, size, inode, err := l.open(l.path + ".1")
		if err != nil {
			return nil, err
		}
		if previous != nil {
			if l.inode == 0 || l.inode == inode {
				text, err = readFrom(previous, l.at, size)
			}
			if err = errors.Join(err, previous.Close()); err != nil {
				return nil, err
			}
		}
		l.at = 0
	}
	l.inode = inode
	if size < l.at { // somebody has cut it
		l.at = 0
	}
	more, err := readFrom(current, l.at, size)
	if err != nil {
		return nil, err
	}
	l.at = size
	text = slices.Concat(l.rest, text, more)
	end := bytes.LastIndexByte(text, '\n') + 1
	if len(text)-end > maxLogRead {
		end = len(text) // a line without an end
	}
	l.rest = slices.Clone(text[end:])
	return text[:end], nil
}

// open opens a log, if there is one that is a plain file.
func (l *logReader) open(path string) (f *os.File, size int64, inode uint64, err error) {
	f, err = openIn(l.root, path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_NOCTTY)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENXIO):
		return nil, 0, 0, nil
	case err != nil:
		return nil, 0, 0, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		f.Close()
		return nil, 0, 0, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		f.Close()
		return nil, 0, 0, nil
	}
	return f, st.Size, st.Ino, nil
}

// readFrom reads a file from one offset to another, or the last of that.
func readFrom(f *os.File, from, to int64) ([]byte, error) {
	from = max(from, to-maxLogRead)
	if from >= to {
		return nil, nil
	}
	b := make([]byte, to-from)
	n, err := f.ReadAt(b, from)
	if errors.Is(err, io.EOF) { // cut meanwhile
		err = nil
	}
	return b[:n], err
}

// lastLines returns the last lines of a text of complete lines.
func lastLines(text []byte, n int) []byte {
	at := len(text)
	for range n {
		at = bytes.LastIndexByte(text[:max(at-1, 0)], '\n') + 1
		if at == 0 {
			break
		}
	}
	return text[at:]
}
