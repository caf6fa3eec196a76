package vnp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"trellis/internal/store"
)

// offline gives those of the substrate nodes that have vanished. Where the store
// does not answer, it is what was known before.
func (s *Service) offline(ctx context.Context, hosts []string, before map[string]store.HostState) map[string]store.HostState {
	all, err := s.store.Hosts(ctx)
	if err != nil {
		return before
	}
	return s.offlineAmong(all, hosts)
}

// full says which disk has no room for agents' reports; nil: there is room, or nobody
// knows.
func (s *Service) full(ctx context.Context) error {
	// Past the deadline of a request there is still time to say so.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), replyMargin/2)
	defer cancel()
	if err := s.store.CheckRoom(ctx); errors.Is(err, store.ErrNoSpace) {
		return err
	}
	return nil
}

// offlineAmong is offline with the substrate nodes as they were read. The one that
// this process runs on is there.
func (s *Service) offlineAmong(all map[string]store.HostState, hosts []string) map[string]store.HostState {
	var offline map[string]store.HostState
	for _, name := range hosts {
		if h, known := all[name]; known && !h.Alive && name != s.host {
			if offline == nil {
				offline = map[string]store.HostState{}
			}
			offline[name] = h
		}
	}
	return offline
}

// holders lists the substrate nodes that nodes of the VNet are placed on, sorted.
func (s *Service) holders(rec *store.VNetRecord) []string {
	hosts := map[string]bool{}
	for i := range rec.Spec.Nodes {
		hosts[s.hostOf(rec, rec.Spec.Nodes[i].Name)] = true
	}
	return slices.Sorted(maps.Keys(hosts))
}

// nodesOn counts the nodes of a VNet that are placed on a substrate node.
func (s *Service) nodesOn(rec *store.VNetRecord, host string) (n int) {
	for i := range rec.Spec.Nodes {
		if s.hostOf(rec, rec.Spec.Nodes[i].Name) == host {
			n++
		}
	}
	return n
}

// nodesWait says how many nodes wait.
func nodesWait(n int) string {
	if n == 1 {
		return "1 node waits"
	}
	return fmt.Sprintf("%d nodes wait", n)
}

// vanished says which substrate nodes have: "beta has vanished".
func vanished(offline map[string]store.HostState) string {
	names := slices.Sorted(maps.Keys(offline))
	if len(names) == 1 {
		return names[0] + " has vanished"
	}
	return strings.Join(names, ", ") + " have vanished"
}
