package routing

import (
	"bytes"
	"reflect"
	"slices"

	"trellis/internal/vnet"
)

// ReloadPlan says how a running node gets from one configuration to another, in
// this order: Files are written, Commands are run in the node, the services in
// Restart are restarted. Sessions that both configurations have stay up. The
// zero value means that there is nothing to do.
type ReloadPlan struct {
	Files []vnet.File
	// Commands are argument vectors; each must end with exit status 0.
	Commands [][]string
	// Restart names services that cannot take the change while they run.
	Restart []string
	// RestartNode says that the set of services changes, so that the node has to
	// start anew. The other fields are then empty.
	RestartNode bool
}

// IsZero reports whether there is nothing to do.
func (p ReloadPlan) IsZero() bool {
	return len(p.Files) == 0 && len(p.Commands) == 0 && len(p.Restart) == 0 && !p.RestartNode
}

// Reload plans the change of a running node from the configuration old to new.
//
// Files that the user supplies are not part of Daemons, so a change of theirs is
// seen only through what Generate makes of them (frr.conf, extra.conf). Where the
// user takes a generated file over, or gives it back, its service is restarted.
func Reload(old, new Daemons) ReloadPlan {
	sw := softwareOf(new.Kind)
	if old.Kind != new.Kind || sw == nil && !reflect.DeepEqual(old, new) || !reflect.DeepEqual(old.Services, new.Services) {
		return ReloadPlan{RestartNode: true}
	}
	var p ReloadPlan
	if sw == nil {
		return p
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
		switch service := sw.service(f.Path); {
		case service == "":
		case !ok:
			p.Restart = append(p.Restart, service)
		default:
			sw.change(&p, service, was.Content, f.Content)
		}
	}
	for name := range before {
		if service := sw.service(name); service != "" {
			p.Restart = append(p.Restart, service)
		}
	}
	p.Restart = sw.restartOrder(p.Restart, new.Services)
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
