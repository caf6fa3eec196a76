package dataplane

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
)

const (
	// ownDir holds maps and programs; no VNet can have the name.
	ownDir = "@"
	// layoutVersion names the layout of the maps (bpf/maps.h).
	layoutVersion = "v5"
	// outSuffix marks the link at a device's egress. The kernel allows no
	// colon in the name of a device, and no dot in the name of a pin.
	outSuffix = ":out"
	// xdpSuffix marks the link at the far end of a port's veth pair.
	xdpSuffix = ":xdp"
)

// suffixes are those of a device's pins besides that at its ingress.
var suffixes = []string{outSuffix, xdpSuffix}

// deviceOf gives the device that a pin is of, by its name.
func deviceOf(pin string) string {
	device, _, _ := strings.Cut(pin, ":")
	return device
}

// hook is one place of a device where a program of a role runs.
type hook struct {
	program string
	attach  ebpf.AttachType
	suffix  string // of the pin's name
}

// hooks gives the programs of each role, the ingress first: it is what keeps
// frames from the root context.
var hooks = map[Role][]hook{
	Port:   {{"port_in", ebpf.AttachTCXIngress, ""}, {"port_out", ebpf.AttachTCXEgress, outSuffix}},
	Member: {{"lan_in", ebpf.AttachTCXIngress, ""}, {"lan_out", ebpf.AttachTCXEgress, outSuffix}},
	Bridge: {{"lan_host", ebpf.AttachTCXIngress, ""}},
}

// roles gives the role of a device by the program at its ingress.
var roles = map[string]Role{"port_in": Port, "lan_in": Member, "lan_host": Bridge}

// pinPath checks the names, which become a path, and gives that of a link.
func (d *Dataplane) pinPath(vnet, device, suffix string) (string, error) {
	for _, name := range []string{vnet, device} {
		if name == "" || name == ownDir || strings.ContainsAny(name, "./:") {
			return "", fmt.Errorf("%q cannot name a pin: it must not be empty, %q, or hold a dot, slash or colon", name, ownDir)
		}
	}
	return filepath.Join(d.dir, vnet, device+suffix), nil
}

// unpin removes a pin; that it is not there is no error.
func unpin(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove a pin: %w", err)
	}
	return nil
}

// vnets lists the VNets that have pins.
func (d *Dataplane) vnets() ([]string, error) {
	entries, err := os.ReadDir(d.dir)
	if err != nil {
		return nil, fmt.Errorf("list the pinned links: %w", err)
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() && e.Name() != ownDir {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// pins lists the pins of a VNet by their names; none if there is no such VNet.
func (d *Dataplane) pins(vnet string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(d.dir, vnet))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list the pinned links of %s: %w", vnet, err)
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, nil
}
