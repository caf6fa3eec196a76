package seccomp

import (
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// TestRulesDoNotOverlap: which of two rules that hold for the same call decides would
// be the library's affair.
func TestRulesDoNotOverlap(t *testing.T) {
	byName := map[string][]specs.LinuxSyscall{}
	for _, r := range Profile().Syscalls {
		for _, n := range r.Names {
			byName[n] = append(byName[n], r)
		}
	}
	for name, rules := range byName {
		for i, a := range rules {
			for _, b := range rules[:i] {
				if a.Action != b.Action && overlap(a, b) {
					t.Errorf("%s: %+v and %+v", name, a, b)
				}
			}
		}
	}
}

// overlap reports whether there are arguments that both rules hold for.
func overlap(a, b specs.LinuxSyscall) bool {
	for _, x := range a.Args {
		for _, y := range b.Args {
			if both := x.Value & y.Value; x.Index == y.Index && x.ValueTwo&both != y.ValueTwo&both {
				return false
			}
		}
	}
	return true
}

// TestArgumentsAreInts: a comparison of all 64 bits is passed by with any bit set that
// the kernel does not look at.
func TestArgumentsAreInts(t *testing.T) {
	for _, r := range Profile().Syscalls {
		for _, a := range r.Args {
			if a.Op != specs.OpMaskedEqual || r.Names[0] != "clone" && a.Value>>32 != 0 || a.ValueTwo&^a.Value != 0 {
				t.Errorf("%v: %+v", r.Names, a)
			}
		}
	}
}

func TestBlocks(t *testing.T) {
	all := [][]block{prctls, absentNetlinks, absentFamilies}
	for _, l := range levels {
		all = append(all, l.allowed)
	}
	for _, blocks := range all {
		for _, b := range blocks {
			if b.count&(b.count-1) != 0 || b.first%b.count != 0 {
				t.Errorf("no single comparison tells %d values from %d on", b.count, b.first)
			}
		}
	}
}
