package forward

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"trellis/internal/bench"
	"trellis/internal/substrate/rtnl"
)

// manyRoutes is how many routes a router has whose name ends in -100k.
const manyRoutes = 100_000

// others gives n networks of 24 bits that are none of the rig's. They lie all
// over the unicast addresses, so that the sink's own is as deep among them as any.
func others(n int, each func(netip.Prefix)) {
	for i := uint32(1); n > 0; i++ {
		// An odd factor makes every i another network.
		to := netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, i*0x9e3779<<8)))
		first := to.As4()[0]
		if first == 0 || first == 127 || first >= 224 || benchNet.Contains(to) || underlayNet.Contains(to) || rootNet.Contains(to) {
			continue
		}
		each(netip.PrefixFrom(to, 24))
		n--
	}
}

// fill gives a router's FIB n more routes by a router's way to the sink.
func fill(s *bench.Space, device string, n int) error {
	if n == 0 {
		return nil
	}
	return s.Do(func() error {
		c, err := rtnl.Dial()
		if err != nil {
			return err
		}
		defer c.Close()
		out, err := c.Link(0, device)
		if err != nil {
			return err
		}
		var b rtnl.Batch
		header := unix.RtMsg{
			Family: unix.AF_INET, Dst_len: 24, Table: unix.RT_TABLE_MAIN, Protocol: unix.RTPROT_STATIC,
			Scope: unix.RT_SCOPE_UNIVERSE, Type: unix.RTN_UNICAST, Flags: unix.RTNH_F_ONLINK,
		}
		others(n, func(to netip.Prefix) {
			b.Begin(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, rtnl.Header(&header))
			b.Bytes(unix.RTA_DST, to.Addr().AsSlice())
			b.Bytes(unix.RTA_GATEWAY, sinkHost.AsSlice())
			b.Uint32(unix.RTA_OIF, uint32(out.Index))
		})
		failed, err := c.Execute(&b)
		if err == nil && len(failed) > 0 {
			err = failed[0].Err
		}
		if err != nil {
			return fmt.Errorf("fill a router's FIB: %w", err)
		}
		return nil
	})
}
