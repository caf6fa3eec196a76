package dataplane_test

import (
	"regexp"
	"testing"

	"trellis/internal/substrate/nstest"
)

// A node's root cannot take off what watches its interface, nor replace it.
func TestTenantCannotDetach(t *testing.T) {
	l := newLab(t)
	n := nstest.NewTenant(t)
	index, _ := l.attach(t, n, "eth1", 1458)
	l.fast(t, index, true)
	n.Must(t, "ip link set eth1 up")
	program := func() string { return regexp.MustCompile(`prog/xdp id \d+`).FindString(n.Must(t, "ip link show eth1")) }
	before := program()
	if before == "" {
		t.Fatal("there is no program")
	}
	for _, attack := range []string{"ip link set dev eth1 xdp off", "ip link set dev eth1 xdpdrv off", "ip link set dev eth1 xdpgeneric off"} {
		out, err := n.Exec(t, attack)
		if after := program(); after != before {
			t.Errorf("%s (%v: %s) turned %q into %q", attack, err, out, before, after)
		}
	}
}
