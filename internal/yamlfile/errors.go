package yamlfile

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Error is one mistake in a file.
type Error struct {
	File   string
	Line   int // 1 for the first; 0 where it has no line
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

// Errors is every mistake that was found in a file, by line.
type Errors []Error

// maxShown bounds what Error prints: after so many, the rest are most
// often consequences.
const maxShown = 50

// Error gives a line for each.
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

// Unwrap gives them one by one to [errors.Is] and [errors.As].
func (e Errors) Unwrap() []error {
	out := make([]error, len(e))
	for i := range e {
		out[i] = e[i]
	}
	return out
}

// Err sorts by line and gives a nil error for an empty list.
func (e Errors) Err() error {
	if len(e) == 0 {
		return nil
	}
	slices.SortStableFunc(e, func(a, b Error) int { return cmp.Compare(a.Line, b.Line) })
	return e
}
