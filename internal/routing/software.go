package routing

import (
	"slices"

	"trellis/internal/vnet"
)

// software is one kind of routing software: all that is done with it. What
// descriptions of networks have to know of it, [vnet.DaemonKind] says.
type software struct {
	name vnet.Daemon
	// process is the memory, in bytes, that one of its processes takes, measured on
	// Linux 6.18 with OSPF for both families and 1,500 routes.
	process int64

	// generate configures it for a router.
	generate func(*router) (Daemons, error)
	// readers names those of the services whose configuration a file is; nil: none.
	readers func(path string, services []Service) []string
	// change gives the commands that take running services from one content of their
	// configuration to another, and those of them that have to be restarted for it.
	change func(path string, readers []string, was, now []byte) (commands []Command, restart []string)
	// follows reports whether a service has to be restarted after another. Nil: none.
	follows func(s Service, restarted string) bool
	// saves reports whether it writes a file itself when its user saves the
	// configuration. Nil: none.
	saves func(path string) bool

	// check gives the command that asks whether it takes the user's file of a path,
	// as [Checks] says; nil: that is none of its files.
	check func(path, dir string) []string
	// complaint reads a line that the check has printed.
	complaint func(line string) (Complaint, bool)
	// refused names a line of the user's configuration that it goes on without, by
	// its logs, as [Daemons.Refused]. Nil: it does not start then.
	refused func(d Daemons, own []vnet.File, logs map[string]string) string
}

// registry lists the routing software that there is.
var registry = []software{frrSoftware, birdSoftware}

// softwareOf finds the software of a name; nil: there is none.
func softwareOf(name vnet.Daemon) *software {
	i := slices.IndexFunc(registry, func(s software) bool { return s.name == name })
	if i < 0 {
		return nil
	}
	return &registry[i]
}

// ProcessMemory is what each of the processes takes of memory, in bytes; 0 where
// there are none.
func (d Daemons) ProcessMemory() int64 {
	if s := softwareOf(d.Kind); s != nil {
		return s.process
	}
	return 0
}

// Saves reports whether routing software, the user's own as well, writes a file
// itself when its user saves the configuration.
func Saves(path string) bool {
	return slices.ContainsFunc(registry, func(s software) bool { return s.saves != nil && s.saves(path) })
}
