package format

import (
	"strings"

	"trellis/internal/yamlfile"
)

// Error is one mistake in a file, with its place and a remedy.
type Error = yamlfile.Error

// Errors is every mistake that was found in a file, by line.
type Errors = yamlfile.Errors

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
