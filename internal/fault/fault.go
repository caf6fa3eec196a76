// Package fault ends the own process at a named place, so that tests can show
// what a crash there leaves behind.
//
// A place is marked by a call of [Point]. With TRELLIS_FAULT=name in the
// environment the process kills itself with SIGKILL when it first gets there;
// with TRELLIS_FAULT=name:n, at the n-th time. Without the variable a point
// costs one comparison.
package fault

import (
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

var (
	wanted = os.Getenv("TRELLIS_FAULT")
	hits   atomic.Int64
)

// Point marks a place by name: letters, digits, '.', '-' and '/'.
func Point(name string) {
	if wanted == "" {
		return
	}
	at, count, counted := strings.Cut(wanted, ":")
	if at != name {
		return
	}
	n := int64(1)
	if counted {
		v, err := strconv.ParseInt(count, 10, 64)
		if err != nil || v < 1 {
			panic("TRELLIS_FAULT=" + wanted + ": want name or name:n with n ≥ 1")
		}
		n = v
	}
	if hits.Add(1) == n {
		// SIGKILL cannot be handled, so nothing is tidied up on the way out.
		_ = syscall.Kill(syscall.Getpid(), syscall.SIGKILL)
		select {}
	}
}
