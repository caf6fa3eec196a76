package routing

import (
	"slices"
	"testing"

	"trellis/internal/vnet"
)

// Descriptions may name what package vnet lists, so all of that must be configured
// here, and do what is said of it there.
func TestSoftwareIsWhatDescriptionsMayName(t *testing.T) {
	if len(registry) != len(vnet.DaemonKinds) {
		t.Errorf("%d kinds of software, %d that descriptions may name", len(registry), len(vnet.DaemonKinds))
	}
	for _, k := range vnet.DaemonKinds {
		if s := softwareOf(k.Name); s == nil || s.process == 0 {
			t.Errorf("%s: no software, or of unknown size: %+v", k.Name, s)
			continue
		}
		for p := range k.Speaks {
			v := describe(vnet.Routing{Protocol: p, Daemon: k.Name, Timers: vnet.TimersFast}, abilene...).complete(t)
			configs, err := Generate(v, Load{})
			if err != nil {
				t.Errorf("%s: %v", k.Name, err)
				continue
			}
			for name, c := range configs {
				if len(c.Daemons.Services) == 0 || c.Daemons.Kind != k.Name {
					t.Errorf("%s under %s: %s has %+v", p, k.Name, name, c.Daemons)
				}
				if name := (&vnet.Node{Files: c.Daemons.Files}).OwnDaemon(); name != k.Name {
					t.Errorf("%s under %s: its own files configure %q", p, k.Name, name)
				}
				for _, s := range c.Daemons.Services {
					read := 0
					for _, f := range c.Daemons.Files {
						if slices.Contains(softwareOf(k.Name).readers(f.Path, c.Daemons.Services), s.Name) {
							read++
						}
					}
					if read != 1 && !s.Optional {
						t.Errorf("%s under %s: %s reads %d of its files", p, k.Name, s.Name, read)
					}
				}
			}
		}
	}
}
