package interop

import (
	"bytes"
	"crypto/sha256"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"time"

	"trellis/internal/substrate/nstest"
)

// transfer sends bytes over TCP and compares what arrives, by its digest. No
// segment may have come with a wrong checksum.
func transfer(t testing.TB, from, to *nstest.Node, address string, size int) {
	t.Helper()
	data := make([]byte, size)
	rand.NewChaCha8([32]byte{1}).Read(data)
	var l net.Listener
	must(t, to.Do(func() (err error) { l, err = net.Listen("tcp", net.JoinHostPort(address, "0")); return err }))
	defer l.Close()
	var c net.Conn
	must(t, from.Do(func() (err error) { c, err = net.DialTimeout("tcp", l.Addr().String(), 10*time.Second); return err }))
	defer c.Close()
	deadline := time.Now().Add(time.Minute)
	must(t, c.SetDeadline(deadline))
	go func() {
		c.Write(data) // a failure shows in what arrives
		c.(*net.TCPConn).CloseWrite()
	}()
	s, err := l.Accept()
	must(t, err)
	defer s.Close()
	must(t, s.SetDeadline(deadline))
	digest := sha256.New()
	n, err := io.Copy(digest, s)
	if err != nil {
		t.Errorf("%d of %d bytes arrived at %s: %v", n, size, address, err)
	}
	if want := sha256.Sum256(data); !bytes.Equal(digest.Sum(nil), want[:]) {
		t.Errorf("%d of %d bytes arrived at %s, and not the same", n, size, address)
	}
	for _, node := range []*nstest.Node{from, to} {
		if bad := stat(t, node, "Tcp", "InCsumErrors"); bad != "0" {
			t.Errorf("%s segments had wrong checksums", bad)
		}
	}
}

// stat reads a figure of /proc/net/snmp in a node.
func stat(t testing.TB, n *nstest.Node, protocol, name string) string {
	t.Helper()
	lines := strings.Split(n.Must(t, "cat /proc/net/snmp"), "\n")
	for i, line := range lines[:len(lines)-1] {
		names, values := strings.Fields(line), strings.Fields(lines[i+1])
		if len(names) > 0 && names[0] == protocol+":" && len(values) == len(names) {
			for k := range names {
				if names[k] == name {
					return values[k]
				}
			}
		}
	}
	t.Fatalf("there is no %s %s", protocol, name)
	return ""
}
