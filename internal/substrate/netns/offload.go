package netns

import (
	"fmt"

	"github.com/safchain/ethtool"
)

// tunnelSegmentation are the features by which an interface takes super-packets
// that are tunnelled already (NETIF_F_GSO_ENCAP_ALL, linux/netdev_features.h).
var tunnelSegmentation = []string{
	"tx-gre-segmentation", "tx-gre-csum-segmentation",
	"tx-ipxip4-segmentation", "tx-ipxip6-segmentation",
	"tx-udp_tnl-segmentation", "tx-udp_tnl-csum-segmentation",
}

// SegmentTunnels has the node's own stack cut the super-packets of a tenant's
// tunnels (VXLAN, GRE, …) before they leave by the interfaces. An skb knows of
// one level of tunnel only, and a link that crosses machines is one already.
func (n *NS) SegmentTunnels(interfaces ...string) error {
	return n.Do(func() error {
		e, err := ethtool.NewEthtool()
		if err != nil {
			return fmt.Errorf("open a socket for the features of devices: %w", err)
		}
		defer e.Close()
		for _, name := range interfaces {
			have, err := e.Features(name)
			if err != nil {
				return fmt.Errorf("read the features of %s: %w", name, err)
			}
			off := map[string]bool{}
			for _, f := range tunnelSegmentation {
				if have[f] {
					off[f] = false
				}
			}
			if len(off) == 0 {
				continue
			}
			if err := e.Change(name, off); err != nil {
				return fmt.Errorf("turn segmentation of tunnels off at %s: %w", name, err)
			}
		}
		return nil
	})
}
