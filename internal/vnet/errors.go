package vnet

import "strings"

// Error is one broken rule of a description.
type Error struct {
	// Path names the object, by position: "links[3].endpoints[1].mtu". Readers
	// map it to a line of the file. Empty: the description as a whole.
	Path string
	// What is wrong, naming the object as the user does.
	What string
	// Remedy says what to do about it.
	Remedy string
}

// Error gives "what; remedy".
func (e Error) Error() string {
	if e.Remedy == "" {
		return e.What
	}
	return e.What + "; " + e.Remedy
}

// Errors is every broken rule that was found, in the order of the description.
type Errors []Error

// Error gives one line for each error.
func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i := range e {
		lines[i] = e[i].Error()
	}
	return strings.Join(lines, "\n")
}

// orNil gives a nil error for an empty list.
func (e Errors) orNil() error {
	if len(e) == 0 {
		return nil
	}
	return e
}
