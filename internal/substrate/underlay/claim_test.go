package underlay

import (
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// claimed has the router say that a packet of the IPv4 tunnel was too large, and waits until that
// has been looked at.
func (l *lab) claimed(t *testing.T, size, mtu int) State {
	t.Helper()
	message := tooBig4(way4, size, mtu)[20:]
	l.mu.Lock()
	delete(l.claims, way4.Endpoints)
	l.mu.Unlock()
	err := l.router.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMP)
		if err != nil {
			return err
		}
		return errors.Join(unix.Sendto(fd, message, 0, &unix.SockaddrInet4{Addr: way4.Local.As4()}), unix.Close(fd))
	})
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		l.mu.Lock()
		rest, heard := l.claims[way4.Endpoints]
		known, narrow := l.narrow[way4.Endpoints]
		l.mu.Unlock()
		if heard && !rest.IsZero() {
			if !narrow {
				return l.States()[way4.Endpoints]
			}
			return l.await(t, way4.Endpoints, "a claim", func(s State) bool { return s.Err == nil && s.Route.MTU == known.mtu })
		}
		if time.Now().After(deadline) {
			t.Fatalf("the claim that %d fit was not looked at in time", mtu)
		}
	}
}

// TestFalseClaims has messages by one who knows the tunnel's key, which are not true.
func TestFalseClaims(t *testing.T) {
	l := newLab(t)
	l.open(t)
	l.resolve(t)
	if s := l.claimed(t, 1500, 1000); s.Route.MTU != 1500 || s.Route.Narrow {
		t.Errorf("a path that carries 1500 is taken for %+v", s)
	}
	// What is true of it is believed, and no more.
	l.router.Must(t, "ip link set r1 mtu 1400")
	if s := l.claimed(t, 1500, 1000); s.Route.MTU != 1400 || !s.Route.Narrow {
		t.Errorf("a path that carries 1400 is taken for %+v", s)
	}
	if s := l.claimed(t, 1500, 1000); s.Route.MTU != 1400 {
		t.Errorf("and after another claim for %+v", s)
	}
}

// TestUncheckedClaims has the far end answer nothing: what a router says is believed.
func TestUncheckedClaims(t *testing.T) {
	l := newLab(t)
	l.open(t)
	l.resolve(t)
	l.far.Must(t, "sysctl -qw net.ipv4.icmp_echo_ignore_all=1")
	if s := l.claimed(t, 1500, 1300); s.Route.MTU != 1300 || !s.Route.Narrow {
		t.Errorf("a path of which a router says that it carries 1300 is taken for %+v", s)
	}
}

// TestForeignEchoes takes no answer for its own that another may have sent.
func TestForeignEchoes(t *testing.T) {
	e := &echo{is4: true, token: [8]byte{1, 2, 3, 4, 5, 6, 7, 8}}
	answer := make([]byte, 20+8+8+64)
	answer[0] = 0x45
	answer[20+7] = 9
	copy(answer[20+8:], e.token[:])
	sent := map[uint16]int{9: len(answer)}
	if size, ok := e.parse(answer, sent); !ok || size != len(answer) {
		t.Fatalf("an answer is taken for %d, %v", size, ok)
	}
	for name, bad := range map[string][]byte{"cut": answer[:len(answer)-1], "short": answer[:30], "none": nil} {
		if _, ok := e.parse(bad, sent); ok {
			t.Errorf("%s: taken for an answer", name)
		}
	}
	answer[20+8+3]++
	if _, ok := e.parse(answer, sent); ok {
		t.Error("another's token is taken for an answer")
	}
}
