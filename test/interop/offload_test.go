package interop

import (
	"errors"
	"fmt"
	"testing"

	"github.com/safchain/ethtool"

	"trellis/internal/substrate/nstest"
)

// set turns features of a node's device on or off, by the names of `ethtool -k`.
func set(t testing.TB, n *nstest.Node, device string, features map[string]bool) {
	t.Helper()
	must(t, n.Do(func() error {
		e, err := ethtool.NewEthtool()
		if err != nil {
			return err
		}
		defer e.Close()
		if err := e.Change(device, features); err != nil {
			return fmt.Errorf("change the features of %s: %w", device, err)
		}
		are, err := e.Features(device)
		for name, want := range features {
			if are[name] != want {
				err = errors.Join(err, fmt.Errorf("%s of %s is %t", name, device, are[name]))
			}
		}
		return err
	}))
}

// off is a set of features, all off.
func off(names ...string) map[string]bool {
	features := map[string]bool{}
	for _, n := range names {
		features[n] = false
	}
	return features
}

// Names of features, as the kernel spells them.
const (
	txChecksum = "tx-checksum-ip-generic"
	gather     = "tx-scatter-gather"
	gso        = "tx-generic-segmentation"
	tso        = "tx-tcp-segmentation"
	tso6       = "tx-tcp6-segmentation"
	tsoECN     = "tx-tcp-ecn-segmentation"
	tsoGRE     = "tx-gre-segmentation"
	tsoGRECsum = "tx-gre-csum-segmentation"
	tsoUDP     = "tx-udp-segmentation"
	gro        = "rx-gro"
)

// bulk is how much to send, bytes.
func bulk() int {
	if testing.Short() {
		return 512 << 10
	}
	return 2 << 20
}

// Bulk TCP arrives intact whatever offloads the two ends use, and every frame of
// it on the underlay is whole.
func TestOffloadsInNodes(t *testing.T) {
	matrix(t, 1500, func(t *testing.T, l *lab) {
		near, far := l.pair(t)
		for _, c := range []struct {
			name     string
			features map[string]bool
		}{
			{"as they come", nil},
			{"no TSO", off(tso, tso6, tsoECN, tsoUDP)},
			{"nor GSO", off(gso)},
			{"nor GRO", off(gro)},
			{"nor checksums", off(txChecksum)},
			{"nor scatter-gather", off(gather)},
			{"GRO alone", map[string]bool{gro: true}},
		} {
			t.Run(c.name, func(t *testing.T) {
				set(t, near, "eth1", c.features)
				set(t, far, "eth1", c.features)
				transfer(t, near, far, "10.0.0.2", bulk())
				transfer(t, far, near, "10.0.0.1", bulk())
				transfer(t, near, far, "fd00::2", bulk())
				transfer(t, far, near, "fd00::1", bulk())
				l.wire.sound(t)
			})
		}
	})
}

// Bulk TCP arrives intact whatever the uplink's driver can do.
func TestOffloadsOfTheUplink(t *testing.T) {
	matrix(t, 1500, func(t *testing.T, l *lab) {
		near, far := l.pair(t)
		for _, c := range []struct {
			name     string
			features map[string]bool
		}{
			{"no GRE segmentation", off(tsoGRE, tsoGRECsum)},
			{"no TSO", off(tso, tso6, tsoECN, tsoUDP)},
			{"no GSO", off(gso)},
			{"no scatter-gather", off(gather)},
		} {
			t.Run(c.name, func(t *testing.T) {
				set(t, l.own.Node, "up0", c.features)
				transfer(t, near, far, "10.0.0.2", bulk())
				transfer(t, far, near, "fd00::1", bulk())
				l.wire.sound(t)
			})
		}
	})
}
