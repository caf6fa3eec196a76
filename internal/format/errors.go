package format

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Error is one fault of a file.
type Error struct {
	File   string
	Line   int // 1 for the first; 0 where the fault has no line
	What   string
	Remedy string
	Err    error // the cause, where there is one; else nil
}

// Error gives "FILE:LINE: what; remedy".
func (e Error) Error() string {
	var b strings.Builder
	b.WriteString(e.File)
	if e.Line > 0 {
		fmt.Fprintf(&b, ":%d", e.Line)
	}
	b.WriteString(": ")
	b.WriteString(e.What)
	if e.Remedy != "" {
		b.WriteString("; ")
		b.WriteString(e.Remedy)
	}
	return b.String()
}

// Unwrap gives the cause.
func (e Error) Unwrap() error { return e.Err }

// Errors is every fault that was found in a file, by line.
type Errors []Error

// maxShown bounds what Error prints: after so many faults, the rest are most
// often consequences.
const maxShown = 50

// Error gives a line for each fault.
func (e Errors) Error() string {
	lines := make([]string, 0, len(e))
	for i := range e {
		if i == maxShown {
			lines = append(lines, fmt.Sprintf("… and %d more", len(e)-i))
			break
		}
		lines = append(lines, e[i].Error())
	}
	return strings.Join(lines, "\n")
}

// Unwrap gives the faults one by one to [errors.Is] and [errors.As].
func (e Errors) Unwrap() []error {
	out := make([]error, len(e))
	for i := range e {
		out[i] = e[i]
	}
	return out
}

// orNil sorts by line and gives a nil error for an empty list.
func (e Errors) orNil() error {
	if len(e) == 0 {
		return nil
	}
	slices.SortStableFunc(e, func(a, b Error) int { return cmp.Compare(a.Line, b.Line) })
	return e
}

// Warning is something in a file that was left out or changed, so that the
// network is not quite what the file says.
type Warning struct {
	File string
	Line int
	What string
}

// String gives "FILE:LINE: what".
func (w Warning) String() string {
	return Error{File: w.File, Line: w.Line, What: w.What}.Error()
}

// places knows the line of each object of a description, by the object's path
// in the model.
type places map[string]int

// line gives the line of an object, or of the nearest thing that contains it.
func (p places) line(path string) int {
	for path != "" {
		if n, ok := p[path]; ok {
			return n
		}
		path = path[:max(strings.LastIndexByte(path, '.'), strings.LastIndexByte(path, '['), 0)]
	}
	return p[""]
}
