package forward

import (
	"github.com/vishvananda/netlink"

	"trellis/internal/substrate/dataplane"
	"trellis/internal/substrate/port"
	"trellis/internal/substrate/shaper"
	"trellis/internal/vnet"
)

// rated is the rate of the links of configurations with one, in bit/s: more than any of them carries.
const rated = 100_000_000_000

// rate gives what a router sends by a port a rate, as the agent does: by a helper pair, whose
// other end the path is to begin at. It gives that end.
func (r *rig) rate(d *dataplane.Dataplane, device string, index int) (behind int, err error) {
	if err := port.CreateHelpers([]port.Helper{{Device: device, Alias: owner + device, Group: group, MTU: routerMTU}}); err != nil {
		return 0, err
	}
	shaped, member := port.HelperNames(device)
	var ends []int
	for _, name := range []string{shaped, member} {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return 0, err
		}
		if err := d.Attach(tenant, name, l.Attrs().Index, dataplane.Port); err != nil {
			return 0, err
		}
		ends = append(ends, l.Attrs().Index)
	}
	if err := shaper.Set(shaped, vnet.Shape{Rate: rated}); err != nil {
		return 0, err
	}
	burst, queue := shaper.Bounds(rated, routerMTU)
	to := dataplane.End{Index: ends[0], Shaped: true, Rate: dataplane.Rate{Bits: rated, Burst: burst, Queue: queue, MTU: routerMTU}}
	if err := d.Join(dataplane.End{Index: index}, to); err != nil {
		return 0, err
	}
	return ends[1], port.SetUp(map[string]bool{shaped: true, member: true})
}
