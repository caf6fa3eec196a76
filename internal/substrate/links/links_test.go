package links_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"trellis/internal/substrate/bridge"
	"trellis/internal/substrate/links"
	"trellis/internal/substrate/nstest"
	"trellis/internal/substrate/port"
	"trellis/internal/substrate/shaper"
	"trellis/internal/vnet"
)

func open(t *testing.T) *links.Table {
	t.Helper()
	table, err := links.Open("test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := table.Close(); err != nil {
			t.Error(err)
		}
	})
	return table
}

// of describes the devices of the VNet that the specifications of nstest are of.
func of(t *testing.T, table *links.Table) map[string]links.Device {
	t.Helper()
	list, err := table.Of("net")
	if err != nil {
		t.Fatal(err)
	}
	byName := map[string]links.Device{}
	for _, d := range list {
		byName[d.Device] = d
	}
	return byName
}

// TestTableSeesItsCallersChanges makes every kind of change and looks at once.
func TestTableSeesItsCallersChanges(t *testing.T) {
	nstest.Root(t)
	table := open(t)
	n := nstest.NewNode(t)
	s := nstest.Spec(n, "eth1")
	s.Alias = "trellis:test:net/a:eth1"
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(port.Create([]port.Spec{s}))
	if index, err := table.Indexes(s.Device); err != nil || index[s.Device] == 0 {
		t.Fatalf("a new device is at %v, %v", index, err)
	}
	must(table.Refresh(s.Device))
	if d := of(t, table)[s.Device]; d.Object != "a:eth1" || d.Up || d.MTU != s.MTU || d.Kind != port.KindPort {
		t.Fatalf("the new device is %+v", d)
	}
	for range 50 { // back and forth, so that a notification that lags would be seen
		must(port.SetUp(map[string]bool{s.Device: true}))
		if d := of(t, table)[s.Device]; !d.Up {
			t.Fatalf("set up, it is %+v", d)
		}
		must(port.SetUp(map[string]bool{s.Device: false}))
		if d := of(t, table)[s.Device]; d.Up || d.Object != "a:eth1" {
			t.Fatalf("set down, it is %+v", d)
		}
	}
	must(port.SetMTU(s.Device, 1400))
	must(shaper.Set(s.Device, vnet.Shape{Rate: 8_000_000}))
	if d := of(t, table)[s.Device]; d.MTU != 1400 || d.Shape.Rate != 8_000_000 {
		t.Errorf("shaped, it is %+v", d)
	}
	must(shaper.Set(s.Device, vnet.Shape{}))
	must(bridge.Ensure(bridge.Bridge{Name: "tbx", Alias: "trellis:test:net/@x", Group: s.Group, MTU: 1500}))
	must(table.Refresh("tbx"))
	must(bridge.SetIsolated("tbx", s.Device))
	must(table.Refresh(s.Device))
	if d := of(t, table)[s.Device]; !d.Shape.IsZero() || d.Master != "tbx" || !d.Isolated {
		t.Errorf("on a bridge, it is %+v", d)
	}
	must(bridge.SetPort("", s.Device))
	if d := of(t, table)[s.Device]; d.Device == "" || d.Master != "" {
		t.Errorf("off its bridge, it is %+v", d)
	}
	if alone, err := table.Alone(s.Group, "net"); err != nil || !alone {
		t.Errorf("the group is shared, %v", err)
	}
	if alone, err := table.Alone(s.Group, "other"); err != nil || alone {
		t.Errorf("the group is another's alone, %v", err)
	}
	if vnets, err := table.VNets(); err != nil || !slices.Equal(vnets, []string{"net"}) {
		t.Errorf("VNets %v, %v", vnets, err)
	}
	must(port.Delete(s.Device, "tbx"))
	if left := of(t, table); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	if vnets, err := table.VNets(); err != nil || len(vnets) != 0 {
		t.Errorf("VNets %v, %v", vnets, err)
	}
}

// TestTableAdoptsAndIsRepaired opens the view over what is there, of this and of
// another instance, and has it lose notifications.
func TestTableAdoptsAndIsRepaired(t *testing.T) {
	nstest.Root(t)
	n := nstest.NewNode(t)
	mine, other := nstest.Spec(n, "eth1"), nstest.Spec(n, "eth2")
	mine.Alias, other.Alias = "trellis:test:net/a:eth1", "trellis:other:net/a:eth1"
	if err := port.Create([]port.Spec{mine, other}); err != nil {
		t.Fatal(err)
	}
	if err := shaper.Set(mine.Device, vnet.Shape{Rate: 8_000_000}); err != nil {
		t.Fatal(err)
	}
	table := open(t)
	if all := of(t, table); len(all) != 1 || all[mine.Device].Shape.Rate != 8_000_000 {
		t.Fatalf("adopted %v", all)
	}
	links.Shrink(table, 1<<12)
	// One call makes more notifications than fit.
	var many []port.Spec
	for i := range 64 {
		s := nstest.Spec(n, fmt.Sprintf("m%d", i))
		s.Alias = "trellis:test:net/a:" + s.Name
		many = append(many, s)
	}
	resume := links.Pause(table)
	err := port.Create(many)
	resume()
	if err != nil {
		t.Fatal(err)
	}
	if all := of(t, table); len(all) != 65 {
		t.Errorf("%d devices after notifications were lost, want 65", len(all))
	}
	if err := port.DeleteGroup(mine.Group); err != nil {
		t.Fatal(err)
	}
	if all := of(t, table); len(all) != 0 {
		t.Errorf("%d devices are left", len(all))
	}
}

// TestTableOfAForeignAlias follows a device whose owner changes its mind.
func TestTableOfAForeignAlias(t *testing.T) {
	nstest.Root(t)
	table := open(t)
	nstest.Sh(t, "ip link add dx type ifb; ip link set dx up; ip link set dev dx alias trellis:test:net/a:eth9")
	if d := of(t, table)["dx"]; d.Object != "a:eth9" {
		t.Errorf("it is %+v", d)
	}
	nstest.Sh(t, "ip link set dev dx name dy && ip link set dev dy alias stranger")
	if all := of(t, table); len(all) != 0 {
		t.Errorf("it is still %v", all)
	}
	if index, err := table.Indexes("dx", "dy"); err != nil || index["dx"] != 0 || index["dy"] == 0 {
		t.Errorf("renamed, it is at %v, %v", index, err)
	}
	nstest.Sh(t, "ip link del dev dy")
	if index, err := table.Indexes("dy"); err != nil || index["dy"] != 0 {
		t.Errorf("gone, it is at %v, %v", index, err)
	}
}

// TestTableTellsOfPorts has a node take its interface down and up, and delete it.
func TestTableTellsOfPorts(t *testing.T) {
	nstest.Root(t)
	table := open(t)
	n := nstest.NewNode(t)
	s := nstest.Spec(n, "eth1")
	s.Alias = "trellis:test:net/a:eth1"
	if err := port.Create([]port.Spec{s}); err != nil {
		t.Fatal(err)
	}
	if err := table.Refresh(s.Device); err != nil {
		t.Fatal(err)
	}
	if err := port.SetUp(map[string]bool{s.Device: true}); err != nil {
		t.Fatal(err)
	}
	told := func(what string, holds func(map[string]links.Device) bool) {
		t.Helper()
		deadline := time.After(20 * time.Second)
		for changed := false; !changed || !holds(of(t, table)); {
			select {
			case <-table.PortsChanged():
				changed = slices.Equal(table.TakeChanged(), []string{"net"}) || changed
			case <-deadline:
				t.Fatalf("%s: not told", what)
			}
		}
	}
	n.Must(t, "ip link set eth1 up")
	told("up", func(d map[string]links.Device) bool { return d[s.Device].Carrier })
	n.Must(t, "ip link set eth1 down")
	told("down", func(d map[string]links.Device) bool { return !d[s.Device].Carrier })
	n.Must(t, "ip link del eth1")
	told("deleted", func(d map[string]links.Device) bool { return len(d) == 0 })
	if left := table.TakeChanged(); len(left) > 0 {
		t.Errorf("told again of %v", left)
	}
}
