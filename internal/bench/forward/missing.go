package forward

import (
	"errors"

	"golang.org/x/sys/unix"
)

// MissingError says that a configuration cannot be built here: the kernel lacks
// something that it is made of.
type MissingError struct {
	What   string // that is missing, such as "GRE devices"
	Remedy string
	Err    error // what the kernel said
}

func (e *MissingError) Error() string {
	return "the kernel has no " + e.What + " (" + e.Err.Error() + "); " + e.Remedy
}

func (e *MissingError) Unwrap() error { return e.Err }

// missing makes an error of a request for something that the kernel may lack:
// it says EOPNOTSUPP of a kind of link and EAFNOSUPPORT of a family of sockets
// that it does not know.
func missing(err error, what, remedy string) error {
	for _, no := range []error{unix.EOPNOTSUPP, unix.EAFNOSUPPORT, unix.EPROTONOSUPPORT, unix.ENOPROTOOPT} {
		if errors.Is(err, no) {
			return &MissingError{What: what, Remedy: remedy, Err: err}
		}
	}
	return err
}
