package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"syscall"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Uplink is the name of each host's interface to the underlay.
const Uplink = "eth1"

// protocol marks the routes and rules that are placed here, as Trellis's are
// everywhere (rtm_protocol; free in iproute2's rt_protos).
const protocol = 116

// underlay is the made underlay of one sandbox: its namespaces, open.
type underlay struct {
	spec   *Spec
	fabric *space
	hosts  []*space // as in spec
}

// makeUnderlay makes what is missing of the namespaces and of the links between
// them.
func makeUnderlay(p paths, s *Spec) (_ *underlay, err error) {
	if err := os.MkdirAll(p.pins(), 0o711); err != nil {
		return nil, err
	}
	u := &underlay{spec: s}
	defer func() {
		if err != nil {
			u.close()
		}
	}()
	if u.fabric, err = makeSpace(p.pin(fabric)); err != nil {
		return nil, err
	}
	if err := u.configureFabric(); err != nil {
		return nil, fmt.Errorf("set the fabric up: %w", err)
	}
	for i, h := range s.Hosts {
		space, err := makeSpace(p.pin(h.Name))
		if err != nil {
			return nil, fmt.Errorf("host %s: %w", h.Name, err)
		}
		u.hosts = append(u.hosts, space)
		if err := u.connect(i); err != nil {
			return nil, fmt.Errorf("connect %s to the underlay: %w", h.Name, err)
		}
	}
	return u, nil
}

// openUnderlay opens the namespaces of a sandbox that was made.
func openUnderlay(p paths, s *Spec) (*underlay, error) {
	u := &underlay{spec: s}
	var err error
	if u.fabric, err = openSpace(p.pin(fabric)); err == nil {
		for _, h := range s.Hosts {
			var space *space
			if space, err = openSpace(p.pin(h.Name)); err != nil {
				break
			}
			u.hosts = append(u.hosts, space)
		}
	}
	if err != nil {
		u.close()
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("sandbox %s is not complete: it was interrupted, or the machine has started anew; `trellis sandbox up FILE` completes it", s.Name)
		}
		return nil, err
	}
	return u, nil
}

func (u *underlay) close() {
	if u.fabric != nil {
		u.fabric.close()
	}
	for _, h := range u.hosts {
		h.close()
	}
}

// addressing makes a namespace take its addresses at once: with duplicate
// address detection, IPv6 would be silent for a second (RFC 4862).
var addressing = map[string]string{
	"ipv6/conf/all/accept_dad":     "0",
	"ipv6/conf/default/accept_dad": "0",
	"ipv6/conf/default/accept_ra":  "0",
}

// configure sets what holds in all namespaces of the underlay.
func (u *underlay) configure(s *space, more map[string]string) error {
	values := map[string]string{}
	for _, m := range []map[string]string{addressing, more} {
		for name, value := range m {
			if u.spec.Underlay.IPv6.IsValid() || name[:4] != "ipv6" {
				values[name] = value
			}
		}
	}
	if err := s.sysctls(values); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%w: this kernel runs without IPv6; leave ipv6 out of the file's underlay", err)
		}
		return err
	}
	return nil
}

func (u *underlay) configureFabric() error {
	return u.configure(u.fabric, map[string]string{
		"ipv4/ip_forward":          "1",
		"ipv6/conf/all/forwarding": "1",
	})
}

// connect makes the link between the fabric and a host, and sets its ends up.
func (u *underlay) connect(i int) error {
	name, at := u.spec.Hosts[i].Name, u.spec.Underlay.link(i)
	if err := u.configure(u.hosts[i], nil); err != nil {
		return err
	}
	near, err := u.fabric.netlink()
	if err != nil {
		return err
	}
	defer near.Close()
	far, err := u.hosts[i].netlink()
	if err != nil {
		return err
	}
	defer far.Close()

	// Both ends are made at once where they belong, so that none is ever alone.
	err = near.LinkAdd(&netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: name, MTU: u.spec.Underlay.MTU},
		PeerName:  Uplink, PeerNamespace: netlink.NsFd(u.hosts[i].fd()), PeerMTU: uint32(u.spec.Underlay.MTU),
	})
	if err != nil && !errors.Is(err, syscall.EEXIST) {
		return fmt.Errorf("make a pair of interfaces: %w", err)
	}
	if err := u.fabric.do(func() error { return setOffloads(name) }); err != nil {
		return fmt.Errorf("set the offloads of %s: %w", name, err)
	}
	lo, err := far.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := far.LinkSetUp(lo); err != nil {
		return err
	}
	inside, err := setEnd(near, name, at.router)
	if err != nil {
		return err
	}
	outside, err := setEnd(far, Uplink, at.host)
	if err != nil {
		return err
	}
	for k, gateway := range at.router {
		// The host reaches all others through the fabric, which has a route to
		// each single host that carries its path's MTU.
		if err := far.RouteReplace(&netlink.Route{
			LinkIndex: outside, Dst: everything(gateway), Gw: ip(gateway), Protocol: protocol,
		}); err != nil {
			return fmt.Errorf("set the default route: %w", err)
		}
		if err := ensureRoute(near, inside, at.host[k]); err != nil {
			return err
		}
	}
	return nil
}

// ensureRoute gives a host a route of its own in the fabric, unless it has one:
// that may carry a lower MTU.
func ensureRoute(h *netlink.Handle, device int, host netip.Addr) error {
	err := h.RouteAdd(&netlink.Route{
		LinkIndex: device, Dst: single(host), Scope: netlink.SCOPE_LINK, Protocol: protocol,
	})
	if err != nil && !errors.Is(err, syscall.EEXIST) {
		return fmt.Errorf("add a route to %s: %w", host, err)
	}
	return nil
}

// setEnd gives an interface its addresses and takes it up; it gives its index.
func setEnd(h *netlink.Handle, device string, addrs []netip.Addr) (int, error) {
	l, err := h.LinkByName(device)
	if err != nil {
		return 0, fmt.Errorf("interface %s: %w", device, err)
	}
	for _, a := range addrs {
		pair := &net.IPNet{IP: ip(a), Mask: net.CIDRMask(a.BitLen()-1, a.BitLen())}
		if err := h.AddrReplace(l, &netlink.Addr{IPNet: pair, Flags: unix.IFA_F_NODAD}); err != nil {
			return 0, fmt.Errorf("give %s the address %s: %w", device, a, err)
		}
	}
	if err := h.LinkSetUp(l); err != nil {
		return 0, fmt.Errorf("take %s up: %w", device, err)
	}
	return l.Attrs().Index, nil
}

func ip(a netip.Addr) net.IP { return net.IP(a.AsSlice()) }

// single is the prefix of an address alone.
func single(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: ip(a), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}

// everything is the default prefix of an address's family.
func everything(a netip.Addr) *net.IPNet {
	n := a.BitLen()
	return &net.IPNet{IP: make(net.IP, n/8), Mask: net.CIDRMask(0, n)}
}

func family(a netip.Addr) int {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// setOffloads makes an interface of the fabric, of the calling thread's namespace,
// pass on what a wire would.
//
// What XDP sends to a veth is taken only if the other end receives by NAPI, which
// GRO turns on (veth_xdp_xmit in drivers/net/veth.c). But GRO merges the frames
// of a flow, and when they are cut again a veth leaves their checksums to be
// filled in by a card that never comes, and that the hosts' XDP programs cannot
// stand in for. So the fabric fills them in.
func setOffloads(device string) error {
	e, err := ethtool.NewEthtool()
	if err != nil {
		return err
	}
	defer e.Close()
	return e.Change(device, map[string]bool{"rx-gro": true, "tx-checksum-ip-generic": false})
}
