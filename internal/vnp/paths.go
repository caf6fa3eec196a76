package vnp

import (
	"fmt"

	"trellis/internal/store"
)

// degradedPaths says which paths of links between substrate nodes are down or too
// narrow, as these report; "" when all are well. Of several, it tells one that is
// down, and counts the links.
func degradedPaths(hosts []string, statuses map[string]*store.Status) string {
	var worst store.PathFault
	at := ""
	links := map[string]bool{}
	more := 0 // that no status names
	for _, host := range hosts {
		st := statuses[host]
		if st == nil {
			continue
		}
		more = max(more, st.FaultyPaths-len(st.Paths))
		for _, p := range st.Paths {
			links[p.Link] = true
			if at == "" || p.Down && !worst.Down {
				worst, at = p, host
			}
		}
	}
	if at == "" {
		return ""
	}
	text := fmt.Sprintf("link %s at %s: %s", worst.Link, at, worst.Message)
	if worst.Down {
		text = fmt.Sprintf("link %s has no path from %s to %s: %s", worst.Link, at, worst.Peer, worst.Message)
	}
	switch others := len(links) - 1 + more; {
	case others == 1:
		text += "; and 1 more link is degraded"
	case others > 1:
		text += fmt.Sprintf("; and %d more links are degraded", others)
	}
	return text
}
