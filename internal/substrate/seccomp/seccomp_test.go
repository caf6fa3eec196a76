package seccomp

import (
	"slices"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// TestListsAreDisjoint: a call on both lists would be allowed.
func TestListsAreDisjoint(t *testing.T) {
	conditional := []string{"clone", "clone3", "socket", "socketpair", "personality", "setsockopt", "prctl", "seccomp"}
	for _, name := range slices.Concat(denied, conditional) {
		if slices.Contains(allowed, name) {
			t.Errorf("%s is allowed without condition", name)
		}
	}
	for _, name := range []string{"mount", "unshare", "setns", "bpf", "keyctl", "ptrace", "io_uring_setup", "open_by_handle_at", "mount_setattr"} {
		if !slices.Contains(denied, name) {
			t.Errorf("%s is not denied", name)
		}
	}
	if p := Profile(); p.DefaultAction != specs.ActErrno || len(p.Architectures) != 1 {
		t.Errorf("default %s for %v", p.DefaultAction, p.Architectures)
	}
}
