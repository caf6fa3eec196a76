package dataplane

import "github.com/cilium/ebpf"

// OpenWithoutTCX is Open on a kernel before 6.6.
func OpenWithoutTCX(dir string) (*Dataplane, error) {
	return open(dir, func(*ebpf.Program) (bool, error) { return false, nil })
}
