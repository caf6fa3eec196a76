package vnet

import (
	"fmt"
	"regexp"
)

// hostName is what a substrate node may be called: what machines are called, in
// any case. Keys of the store, names of spans and certificates hold it.
var hostName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`)

// CheckHost refuses what cannot be a substrate node's name.
func CheckHost(name string) error {
	if !hostName.MatchString(name) {
		return fmt.Errorf("%q cannot be a host's name: use 1 to 63 letters, digits, dots, dashes and underscores, a letter or digit first and last", clip(name))
	}
	return nil
}
