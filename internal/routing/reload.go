package routing

import (
	"bytes"
	"reflect"
	"slices"

	"trellis/internal/vnet"
)

// ReloadPlan says how a running node gets from one configuration to another, in
// this order: Files are written, the node is given the new list of services, which
// makes Starts, Stops and Changes true, Commands are run in the node, and Restarts
// are restarted. Sessions that both configurations have stay up. The zero value
// means that there is nothing to do.
type ReloadPlan struct {
	Files []vnet.File
	// Starts, Stops and Changes name services that are new, that go, and that run
	// another command line from now on, for which they start anew.
	Starts, Stops, Changes []string
	Commands               []Command
	// Restarts names, in starting order, services that start anew: Changes, and those
	// that cannot take the change while they run.
	Restarts []string
	// RestartNode says that the node has another kind of routing software, for which
	// it has to start anew. The other fields are then empty.
	RestartNode bool
}

// Without leaves out what is for services that somebody has stopped: they read their
// configuration when they start.
func (p ReloadPlan) Without(stopped ...string) ReloadPlan {
	is := func(service string) bool { return slices.Contains(stopped, service) }
	p.Restarts = slices.DeleteFunc(slices.Clone(p.Restarts), is)
	var commands []Command
	for _, c := range p.Commands {
		if c.For = slices.DeleteFunc(slices.Clone(c.For), is); len(c.For) > 0 {
			c.OrRestart = slices.DeleteFunc(slices.Clone(c.OrRestart), is)
			commands = append(commands, c)
		}
	}
	p.Commands = commands
	return p
}

// Command is a command to be run in a node.
type Command struct {
	Argv []string // must end with exit status 0
	For  []string // the services that it tells of the change
	// OrRestart names the services that are restarted if the command fails; none: the
	// change fails.
	OrRestart []string
}

// IsZero reports whether there is nothing to do.
func (p ReloadPlan) IsZero() bool {
	return len(p.Files)+len(p.Starts)+len(p.Stops)+len(p.Changes)+len(p.Commands)+len(p.Restarts) == 0 && !p.RestartNode
}

// With gives the daemons with those of the user's files that configure one of them:
// files that stand in place of generated ones.
func (d Daemons) With(own []vnet.File) Daemons {
	sw := softwareOf(d.Kind)
	if sw == nil {
		return d
	}
	var more []vnet.File
	for _, f := range own {
		if len(sw.readers(f.Path, d.Services)) > 0 {
			more = append(more, f)
		}
	}
	if len(more) > 0 {
		d.Files = slices.Concat(d.Files, more)
	}
	return d
}

// Reload plans the change of a running node from the configuration old to new, both
// with the user's files ([Daemons.With]).
func Reload(old, new Daemons) ReloadPlan {
	sw := softwareOf(new.Kind)
	if old.Kind != new.Kind || sw == nil && !reflect.DeepEqual(old, new) {
		return ReloadPlan{RestartNode: true}
	}
	var p ReloadPlan
	if sw == nil {
		return p
	}
	var restart []string
	for _, s := range new.Services {
		i := slices.IndexFunc(old.Services, func(was Service) bool { return was.Name == s.Name })
		switch {
		case i < 0:
			p.Starts = append(p.Starts, s.Name)
		case !reflect.DeepEqual(s, old.Services[i]):
			p.Changes = append(p.Changes, s.Name)
			restart = append(restart, s.Name)
		}
	}
	for _, s := range old.Services {
		if !slices.ContainsFunc(new.Services, func(now Service) bool { return now.Name == s.Name }) {
			p.Stops = append(p.Stops, s.Name)
		}
	}
	before := map[string]vnet.File{}
	for _, f := range old.Files {
		before[f.Path] = f
	}
	for _, f := range new.Files {
		was, ok := before[f.Path]
		delete(before, f.Path)
		if ok && f.Mode == was.Mode && bytes.Equal(f.Content, was.Content) {
			continue
		}
		p.Files = append(p.Files, f)
		readers := slices.DeleteFunc(sw.readers(f.Path, new.Services), func(service string) bool {
			return slices.Contains(p.Starts, service) || slices.Contains(p.Changes, service)
		})
		switch {
		case len(readers) == 0:
		case !ok:
			restart = append(restart, readers...)
		default:
			commands, more := sw.change(f.Path, readers, was.Content, f.Content)
			for _, c := range commands {
				c.For = readers
				p.Commands = append(p.Commands, c)
			}
			restart = append(restart, more...)
		}
	}
	for name := range before {
		restart = append(restart, sw.readers(name, new.Services)...)
	}
	p.Restarts = sw.restartOrder(restart, new.Services)
	// Those that all start anew read it then.
	p.Commands = slices.DeleteFunc(p.Commands, func(c Command) bool {
		return len(c.OrRestart) > 0 && !slices.ContainsFunc(c.OrRestart, func(s string) bool { return !slices.Contains(p.Restarts, s) })
	})
	return p
}

// restartOrder puts the names of services to restart in starting order, each
// once, and adds those that must follow one of them.
func (sw *software) restartOrder(names []string, services []Service) []string {
	var order []string
	for _, s := range services {
		follows := sw.follows != nil && slices.ContainsFunc(names, func(name string) bool { return sw.follows(s, name) })
		if follows || slices.Contains(names, s.Name) {
			order = append(order, s.Name)
		}
	}
	return order
}
