package tcp

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"trellis/internal/bench"
)

const (
	// chunk is how much is written and read at once, in bytes: what iperf3 uses.
	chunk = 128 << 10
	// warmUp is the first part of a stream, which does not count: TCP opens its
	// window in it.
	warmUp = 300 * time.Millisecond
)

// ioTimeout bounds every system call, so that a path that carries nothing ends in
// an error and not in a wait. TCP sends a lost SYN again after 1, 3 and 7 seconds.
var ioTimeout = 10 * time.Second

// stream sends one TCP stream from a space to an address in another for a while,
// and gives the rate at which its payload arrives, in 10⁹ bits a second.
func stream(ctx context.Context, from, to *bench.Space, address netip.Addr, length time.Duration) (float64, error) {
	var listener int
	var port int
	err := to.Do(func() (err error) {
		listener, port, err = listen(address)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("listen at %s: %w", address, err)
	}
	end := time.Now().Add(warmUp + length)
	sent := make(chan error, 1)
	go func() { sent <- from.Do(func() error { return send(ctx, address, port, end) }) }()
	var rate float64
	err = to.Do(func() (err error) {
		defer unix.Close(listener)
		rate, err = receive(listener, end)
		return err
	})
	if err := errors.Join(err, <-sent); err != nil {
		return 0, err
	}
	return rate, context.Cause(ctx)
}

// listen opens a socket that waits for a connection, at a port of the kernel's
// choice.
func listen(address netip.Addr) (fd, port int, err error) {
	if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return 0, 0, err
	}
	defer func() {
		if err != nil {
			unix.Close(fd)
		}
	}()
	if err = unix.Bind(fd, &unix.SockaddrInet4{Addr: address.As4()}); err != nil {
		return 0, 0, err
	}
	if err = unix.Listen(fd, 1); err != nil {
		return 0, 0, err
	}
	local, err := unix.Getsockname(fd)
	if err != nil {
		return 0, 0, err
	}
	return fd, local.(*unix.SockaddrInet4).Port, bound(fd)
}

// bound limits the system calls on a socket, accept and connect included.
func bound(fd int) error {
	limit := unix.NsecToTimeval(ioTimeout.Nanoseconds())
	for _, option := range []int{unix.SO_RCVTIMEO, unix.SO_SNDTIMEO} {
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, option, &limit); err != nil {
			return err
		}
	}
	return nil
}

// send writes until the time is up.
func send(ctx context.Context, address netip.Addr, port int, end time.Time) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := bound(fd); err != nil {
		return err
	}
	if err := retry(func() error { return unix.Connect(fd, &unix.SockaddrInet4{Port: port, Addr: address.As4()}) }); err != nil {
		return fmt.Errorf("connect to %s: %w", address, err)
	}
	buf := make([]byte, chunk)
	for ctx.Err() == nil && time.Now().Before(end) {
		if err := retry(func() error { _, err := unix.Write(fd, buf); return err }); err != nil {
			return fmt.Errorf("send to %s: %w", address, err)
		}
	}
	return nil
}

// receive reads one connection until it is closed, and gives the rate over the
// time after the warm-up and before the end.
func receive(listener int, end time.Time) (float64, error) {
	var fd int
	err := retry(func() (err error) {
		fd, _, err = unix.Accept4(listener, unix.SOCK_CLOEXEC)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("accept the stream: %w", err)
	}
	defer unix.Close(fd)
	if err := bound(fd); err != nil {
		return 0, err
	}
	warm := time.Now().Add(warmUp)
	buf := make([]byte, chunk)
	var bytes int64
	var first, last time.Time
	for {
		var n int
		err := retry(func() (err error) { n, err = unix.Read(fd, buf); return err })
		if err != nil {
			return 0, fmt.Errorf("receive: %w", err)
		}
		now := time.Now()
		switch {
		case n == 0:
			if elapsed := last.Sub(first); bytes > 0 && elapsed > 0 {
				return float64(bytes) * 8 / elapsed.Seconds() / 1e9, nil
			}
			return 0, errors.New("nothing arrived after the warm-up")
		case now.Before(warm) || now.After(end):
		case first.IsZero():
			first, last = now, now
		default:
			bytes += int64(n)
			last = now
		}
	}
}

// retry repeats a system call that a signal interrupts: the Go runtime sends
// itself some.
func retry(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
