package reconcile

import (
	"slices"
	"strings"

	"trellis/internal/plan"
	"trellis/internal/routing"
)

// reloadText tells what of a running node's files and daemons changes, and what that
// disturbs; "": nothing changes.
func reloadText(n *plan.Node, have Node, marks Marks) string {
	files := have.Marks.ChangedFiles(marks)
	if len(files) == 0 && have.Marks.Soft == marks.Soft {
		return ""
	}
	todo := routing.Reload(have.Daemons, n.Daemons.With(n.Files))
	for _, f := range todo.Files {
		files = append(files, f.Path)
	}
	slices.Sort(files)
	parts := []string{strings.Join(slices.Compact(files), ", ")}
	for _, change := range []struct {
		verb  string
		names []string
	}{{"starts", todo.Starts}, {"stops", todo.Stops}, {"restarts", todo.Restarts}} {
		if len(change.names) > 0 {
			parts = append(parts, change.verb+" "+strings.Join(change.names, ", "))
		}
	}
	if len(parts) == 1 {
		parts = append(parts, "disturbs nothing")
	}
	if parts[0] == "" {
		parts = parts[1:]
	}
	return strings.Join(parts, "; ")
}
