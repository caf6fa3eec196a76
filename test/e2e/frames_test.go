package e2e

import (
	"encoding/binary"
	"errors"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// tap reads every frame that a network namespace receives or sends, as a packet
// socket of its root sees it.
type tap struct {
	fd int
}

func htons(v uint16) uint16 { return v<<8 | v>>8 }

// openTap listens in the network of a process, on one interface, or on all if
// none is named.
func openTap(t *testing.T, pid int, name string) *tap {
	t.Helper()
	p := &tap{}
	err := inside(pid, func() (err error) {
		p.fd, err = packetSocket(name)
		return err
	})
	if err != nil {
		t.Fatalf("listen in the network of process %d: %v", pid, err)
	}
	t.Cleanup(func() { unix.Close(p.fd) })
	return p
}

func packetSocket(name string) (int, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, int(htons(unix.ETH_P_ALL)))
	if err != nil {
		return 0, err
	}
	to := &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_ALL)}
	if name != "" {
		i, err := net.InterfaceByName(name)
		if err != nil {
			return 0, errors.Join(err, unix.Close(fd))
		}
		to.Ifindex = i.Index
	}
	err = errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20), unix.Bind(fd, to))
	if err != nil {
		return 0, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

// send puts a frame on the tap's interface.
func (p *tap) send(t *testing.T, frame []byte) {
	t.Helper()
	for {
		_, err := unix.Write(p.fd, frame)
		switch {
		case errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.ENOBUFS):
			time.Sleep(time.Millisecond)
			continue
		case err != nil:
			t.Fatalf("send a frame: %v", err)
		}
		return
	}
}

// received gives the frames that have come from outside until now.
func (p *tap) received(t *testing.T) [][]byte {
	t.Helper()
	var frames [][]byte
	buf := make([]byte, 64<<10)
	for {
		n, from, err := unix.Recvfrom(p.fd, buf, 0)
		if errors.Is(err, unix.EAGAIN) {
			return frames
		}
		if err != nil {
			t.Fatalf("receive frames: %v", err)
		}
		if l, ok := from.(*unix.SockaddrLinklayer); ok && l.Pkttype != unix.PACKET_OUTGOING && l.Hatype == unix.ARPHRD_ETHER {
			frames = append(frames, append([]byte(nil), buf[:n]...))
		}
	}
}

// ethernet makes a frame.
func ethernet(dst, src net.HardwareAddr, kind uint16, payload []byte) []byte {
	f := append(append(append([]byte{}, dst...), src...), byte(kind>>8), byte(kind))
	return append(f, payload...)
}

// ipv4 makes a UDP packet.
func ipv4(src, dst net.IP, options []byte, payload []byte) []byte {
	header := 20 + len(options)
	p := make([]byte, header+8, header+8+len(payload))
	p = append(p, payload...)
	p[0] = 4<<4 | byte(header/4)
	binary.BigEndian.PutUint16(p[2:], uint16(len(p)))
	p[8], p[9] = 64, unix.IPPROTO_UDP
	copy(p[12:], src.To4())
	copy(p[16:], dst.To4())
	copy(p[20:], options)
	var sum uint32
	for i := 0; i < header; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(p[i:]))
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	binary.BigEndian.PutUint16(p[10:], ^uint16(sum))
	udp := p[header:]
	binary.BigEndian.PutUint16(udp, 4000)
	binary.BigEndian.PutUint16(udp[2:], 7)
	binary.BigEndian.PutUint16(udp[4:], uint16(8+len(payload)))
	return p
}

// ipv6 makes a packet of any protocol.
func ipv6(src, dst net.IP, next byte, payload []byte) []byte {
	p := make([]byte, 40, 40+len(payload))
	p[0], p[6], p[7] = 6<<4, next, 255
	binary.BigEndian.PutUint16(p[4:], uint16(len(payload)))
	copy(p[8:], src.To16())
	copy(p[24:], dst.To16())
	return append(p, payload...)
}

// arpRequest asks who has an address.
func arpRequest(mac net.HardwareAddr, sender, target net.IP) []byte {
	p := []byte{0, 1, 8, 0, 6, 4, 0, 1}
	p = append(append(p, mac...), sender.To4()...)
	return append(append(p, 0, 0, 0, 0, 0, 0), target.To4()...)
}
