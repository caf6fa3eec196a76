package netns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"trellis/internal/substrate/rtnl"
)

// Policy tells what of the tenant's own keeps its node's packets on the node's
// stack, in words ("netfilter rules", "a qdisc (tbf) at eth1"); "": nothing that
// can be seen from outside. The fast path looks by itself, at each packet, and at
// more than this; see bpf/policy.h.
func (n *NS) Policy() (string, error) {
	var why string
	err := n.Do(func() (err error) {
		if why, err = devicePolicy(); why != "" || err != nil {
			return err
		}
		why, err = netfilterPolicy()
		return err
	})
	if err != nil {
		return "", fmt.Errorf("look for a node's policy: %w", err)
	}
	return why, nil
}

// tcMsg is struct tcmsg (linux/rtnetlink.h).
type tcMsg struct {
	Family               uint8
	_                    [3]uint8
	Index                int32
	Handle, Parent, Info uint32
}

// devicePolicy looks for queueing disciplines and masters.
func devicePolicy() (string, error) {
	c, err := rtnl.Dial()
	if err != nil {
		return "", err
	}
	defer c.Close()
	links, err := c.Links()
	if err != nil {
		return "", err
	}
	veths := map[int]string{}
	for i := range links {
		l := &links[i]
		if l.Kind != "veth" {
			continue
		}
		if l.Master != 0 {
			return fmt.Sprintf("%s belongs to another device of the node's", l.Name), nil
		}
		veths[l.Index] = l.Name
	}
	var found string
	h := tcMsg{}
	err = c.Dump(unix.RTM_GETQDISC, rtnl.Header(&h), nil, func() { found = "" }, func(body []byte) error {
		if len(body) < int(unsafe.Sizeof(tcMsg{})) {
			return nil
		}
		name, ok := veths[int((*tcMsg)(unsafe.Pointer(&body[0])).Index)]
		for typ, v := range rtnl.Attrs(body[unsafe.Sizeof(tcMsg{}):]) {
			if kind := rtnl.Text(v); ok && typ == unix.TCA_KIND && kind != "noqueue" {
				found = fmt.Sprintf("a qdisc (%s) at %s", kind, name)
			}
		}
		return nil
	})
	return found, err
}

// Of linux/netfilter/nf_tables.h.
const (
	getChain   = 10<<8 | 4 // NFNL_SUBSYS_NFTABLES, NFT_MSG_GETCHAIN
	chainHook  = 4         // NFTA_CHAIN_HOOK
	hookNumber = 1         // NFTA_HOOK_HOOKNUM, in network order
)

// nfGenMsg is struct nfgenmsg.
type nfGenMsg struct {
	Family, Version uint8
	Resource        uint16
}

// netfilterPolicy looks for chains of nftables, and for tables of the older
// iptables, that packets on their way through a node meet.
func netfilterPolicy() (string, error) {
	for _, tables := range []string{"ip_tables_names", "ip6_tables_names"} {
		if b, err := os.ReadFile("/proc/thread-self/net/" + tables); err == nil && len(b) > 0 {
			return "iptables rules", nil
		}
	}
	c, err := rtnl.DialNetfilter()
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer c.Close()
	found := false
	h := nfGenMsg{}
	err = c.Dump(getChain, rtnl.Header(&h), nil, func() { found = false }, func(body []byte) error {
		found = found || atForwardHook(body)
		return nil
	})
	switch {
	case err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EOPNOTSUPP): // without nftables in the kernel
		return "", fmt.Errorf("ask nftables for its chains: %w", err)
	case found:
		return "nftables rules", nil
	}
	return "", nil
}

// atForwardHook reports whether a chain is at a hook that packets on their way through
// meet.
func atForwardHook(chain []byte) bool {
	if len(chain) < int(unsafe.Sizeof(nfGenMsg{})) {
		return false
	}
	family := chain[0]
	for typ, v := range rtnl.Attrs(chain[unsafe.Sizeof(nfGenMsg{}):]) {
		if typ != chainHook {
			continue
		}
		for typ, v := range rtnl.Attrs(v) {
			if typ != hookNumber || len(v) < 4 {
				continue
			}
			switch number := binary.BigEndian.Uint32(v); family {
			case unix.NFPROTO_IPV4, unix.NFPROTO_IPV6, unix.NFPROTO_INET:
				return number != unix.NF_INET_LOCAL_IN && number != unix.NF_INET_LOCAL_OUT
			case unix.NFPROTO_NETDEV:
				return true
			}
		}
	}
	return false
}
