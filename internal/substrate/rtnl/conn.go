// Package rtnl speaks rtnetlink in bulk: many requests in one system call,
// acknowledged once, and dumps that are read without an object for each route.
//
// It exists beside the general netlink libraries because they send one request
// a system call and wait for its answer, which a network of a thousand links
// and a million routes feels, and because they lack attributes that Trellis
// needs (IFA_PROTO, kernel commit 47f0bd503210). It knows messages, not
// objects; what they mean is the callers' business.
package rtnl

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// chunkBytes and chunkMessages bound one sendmsg: the kernel copies it
	// whole, and queues an answer to each message that fails while it works.
	chunkBytes    = 256 << 10
	chunkMessages = 1024

	socketBuffer = 4 << 20
	readBuffer   = 64 << 10 // dumps come in pieces of at most 32 KiB

	// answerTimeout is never reached by a living kernel: it answers before
	// sendmsg returns. It keeps a caller from hanging if an answer was lost.
	answerTimeout = 30 * time.Second

	// answersAtOnce bounds the questions of one sendmsg, whose answers, of up to
	// 2 KiB with their bookkeeping, must fit the socket's buffer.
	answersAtOnce = 512

	// dumpTries bounds how often a dump is started again because the table
	// changed meanwhile (NLM_F_DUMP_INTR).
	dumpTries = 64
)

// Conn is a netlink socket, of route netlink but for [DialNetfilter]. It stays in
// the network namespace that it was opened in. Not for concurrent use.
type Conn struct {
	fd  int
	seq uint32
	buf []byte
}

// Dial opens a socket in the calling thread's network namespace.
func Dial() (*Conn, error) { return dial(unix.NETLINK_ROUTE) }

// DialNetfilter opens a socket of netfilter's netlink, whose messages have the
// same frame. EPROTONOSUPPORT: the kernel has none.
func DialNetfilter() (*Conn, error) { return dial(unix.NETLINK_NETFILTER) }

func dial(protocol int) (*Conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return nil, os.NewSyscallError("open a netlink socket", err)
	}
	c := &Conn{fd: fd}
	if err := c.setUp(); err != nil {
		return nil, errors.Join(fmt.Errorf("set up a netlink socket: %w", err), c.Close())
	}
	return c, nil
}

func (c *Conn) setUp() error {
	tv := unix.NsecToTimeval(answerTimeout.Nanoseconds())
	return errors.Join(
		unix.Bind(c.fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}),
		unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, socketBuffer),
		unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, socketBuffer),
		unix.SetsockoptTimeval(c.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv),
		unix.SetsockoptInt(c.fd, unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 1),
		unix.SetsockoptInt(c.fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1),
		unix.SetsockoptInt(c.fd, unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1),
	)
}

// Close closes the socket.
func (c *Conn) Close() error { return os.NewSyscallError("close a netlink socket", unix.Close(c.fd)) }

// Error is the kernel's refusal of a request. It unwraps to the errno.
type Error struct {
	Errno   unix.Errno
	Message string // the kernel's own words, where it has any
}

func (e *Error) Error() string {
	if e.Message == "" {
		return e.Errno.Error()
	}
	return fmt.Sprintf("%v (%s)", e.Errno, e.Message)
}

// Unwrap gives the errno.
func (e *Error) Unwrap() error { return e.Errno }

// Failure is a message of a batch that the kernel refused.
type Failure struct {
	Index int // of the message in the batch
	Err   error
}

// Execute sends the batch, in order and whole: a message that fails does not
// keep the later ones from being done. It returns the messages that failed;
// the error is for what kept the batch itself from being carried out.
func (c *Conn) Execute(b *Batch) ([]Failure, error) { return c.execute(b, nil) }

// execute is Execute that hands the answers to questions in the batch to answer,
// each with the index of its question.
func (c *Conn) execute(b *Batch, answer func(index int, body []byte)) ([]Failure, error) {
	var failed []Failure
	for first := 0; first < len(b.starts); {
		last := first
		for last < len(b.starts) && last-first < chunkMessages && b.end(last)-b.starts[first] <= chunkBytes {
			last++
		}
		last = max(last, first+1)
		var err error
		if failed, err = c.chunk(b, first, last, failed, answer); err != nil {
			return failed, err
		}
		first = last
	}
	return failed, nil
}

func (b *Batch) end(i int) int {
	if i+1 < len(b.starts) {
		return b.starts[i+1]
	}
	return len(b.buf)
}

// chunk sends messages [first, last) and reads the answers: errors as they
// come, then the acknowledgement of the last one, which alone is asked for.
func (c *Conn) chunk(b *Batch, first, last int, failed []Failure, answer func(int, []byte)) ([]Failure, error) {
	base := c.seq + 1
	for i := first; i < last; i++ {
		m := b.buf[b.starts[i]:b.end(i)]
		native.PutUint32(m, uint32(len(m)))
		c.seq++
		native.PutUint32(m[8:], c.seq)
	}
	final := b.buf[b.starts[last-1]:]
	native.PutUint16(final[6:], native.Uint16(final[6:])|unix.NLM_F_ACK)
	if err := c.send(b.buf[b.starts[first]:b.end(last-1)]); err != nil {
		return failed, err
	}
	for {
		done, err := c.receive(func(m message) (bool, error) {
			i := int(m.seq - base)
			if i < 0 || i >= last-first {
				return false, nil // a dump that was given up earlier
			}
			if m.typ != unix.NLMSG_ERROR {
				if answer != nil {
					answer(first+i, m.body)
				}
				return false, nil
			}
			if err := m.err(); err != nil {
				failed = append(failed, Failure{Index: first + i, Err: err})
			}
			return m.seq == c.seq, nil
		})
		if err != nil || done {
			return failed, err
		}
	}
}

func (c *Conn) send(p []byte) error {
	for {
		err := unix.Sendto(c.fd, p, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		if err != unix.EINTR {
			return os.NewSyscallError("send to netlink", err)
		}
	}
}

// message is one received message.
type message struct {
	typ, flags uint16
	seq        uint32
	body       []byte
}

// err reads an NLMSG_ERROR message: nil if it is an acknowledgement.
func (m message) err() error {
	if len(m.body) < 4+unix.SizeofNlMsghdr {
		return &Error{Errno: unix.EBADMSG}
	}
	code := int32(native.Uint32(m.body))
	if code == 0 {
		return nil
	}
	e := &Error{Errno: unix.Errno(-code)}
	if m.flags&unix.NLM_F_ACK_TLVS != 0 {
		tlvs := m.body[4+unix.SizeofNlMsghdr:]
		if m.flags&unix.NLM_F_CAPPED == 0 { // the request's body comes first
			n := align(int(native.Uint32(m.body[4:]))) - unix.SizeofNlMsghdr
			tlvs = tlvs[min(max(n, 0), len(tlvs)):]
		}
		for typ, v := range Attrs(tlvs) {
			if typ == unix.NLMSGERR_ATTR_MSG {
				e.Message = Text(v)
			}
		}
	}
	return e
}

// receive reads one datagram and hands its messages to fn until that says
// done. Datagrams that the kernel did not send are ignored: a tenant's root
// may write to the sockets that are open in its network namespace.
func (c *Conn) receive(fn func(message) (done bool, err error)) (bool, error) {
	if c.buf == nil {
		c.buf = make([]byte, readBuffer)
	}
	n, from, err := unix.Recvfrom(c.fd, c.buf, 0)
	switch {
	case err == unix.EINTR:
		return false, nil
	case err == unix.EAGAIN:
		return false, fmt.Errorf("no answer from netlink within %v", answerTimeout)
	case err != nil:
		return false, os.NewSyscallError("receive from netlink", err)
	}
	if sa, ok := from.(*unix.SockaddrNetlink); !ok || sa.Pid != 0 {
		return false, nil
	}
	done := false
	err = messages(c.buf[:n], func(m message) (bool, error) {
		done, err = fn(m)
		return done, err
	})
	return done, err
}

// messages hands the messages of a datagram to fn until that says done.
func messages(p []byte, fn func(message) (done bool, err error)) error {
	for len(p) >= unix.SizeofNlMsghdr {
		size := int(native.Uint32(p))
		if size < unix.SizeofNlMsghdr || size > len(p) {
			return fmt.Errorf("netlink sent a message of %d bytes in %d", size, len(p))
		}
		m := message{typ: native.Uint16(p[4:]), flags: native.Uint16(p[6:]), seq: native.Uint32(p[8:]), body: p[unix.SizeofNlMsghdr:size]}
		if done, err := fn(m); done || err != nil {
			return err
		}
		p = p[min(align(size), len(p)):]
	}
	return nil
}

// Get sends the one request of a batch, whose answer is one entry, and gives
// that entry's body: fixed header and attributes.
func (c *Conn) Get(b *Batch) (body []byte, err error) {
	if b.Len() != 1 {
		return nil, fmt.Errorf("a batch of %d messages is not one request", b.Len())
	}
	c.seq++
	native.PutUint32(b.buf, uint32(len(b.buf)))
	native.PutUint32(b.buf[8:], c.seq)
	if err := c.send(b.buf); err != nil {
		return nil, err
	}
	for {
		done, err := c.receive(func(m message) (bool, error) {
			if m.seq != c.seq {
				return false, nil
			}
			if m.typ == unix.NLMSG_ERROR {
				return true, m.err()
			}
			body = bytes.Clone(m.body)
			return true, nil
		})
		if err != nil || done {
			return body, err
		}
	}
}

// Dump asks for a whole table and hands each entry's body (fixed header and
// attributes, valid only during the call) to each. begin is called before
// every attempt, to forget the entries of one that a change of the table
// interrupted. attrs are filters, ready-made attributes; nil: none.
func (c *Conn) Dump(typ uint16, header, attrs []byte, begin func(), each func(body []byte) error) error {
	var b Batch
	for range dumpTries {
		begin()
		b.Reset()
		b.Begin(typ, unix.NLM_F_DUMP, slices.Concat(header, attrs))
		interrupted, err := c.dump(&b, each)
		if err != nil || !interrupted {
			return err
		}
	}
	return errors.New("the table kept changing while it was read; try again when less is going on")
}

// DumpOnce asks for a table once, also if it changes meanwhile: for counting what
// others may change without end. An error of each ends it, and the socket is of no
// further use.
func (c *Conn) DumpOnce(typ uint16, header []byte, each func(body []byte) error) error {
	var b Batch
	b.Begin(typ, unix.NLM_F_DUMP, header)
	_, err := c.dump(&b, each)
	return err
}

func (c *Conn) dump(b *Batch, each func([]byte) error) (interrupted bool, err error) {
	c.seq++
	native.PutUint32(b.buf, uint32(len(b.buf)))
	native.PutUint32(b.buf[8:], c.seq)
	if err := c.send(b.buf); err != nil {
		return false, err
	}
	for {
		done, err := c.receive(func(m message) (bool, error) {
			if m.seq != c.seq {
				return false, nil
			}
			interrupted = interrupted || m.flags&unix.NLM_F_DUMP_INTR != 0
			switch m.typ {
			case unix.NLMSG_DONE:
				if len(m.body) >= 4 {
					if code := int32(native.Uint32(m.body)); code < 0 {
						return true, &Error{Errno: unix.Errno(-code)}
					}
				}
				return true, nil
			case unix.NLMSG_ERROR:
				return true, m.err()
			}
			return false, each(m.body)
		})
		if err != nil || done {
			return interrupted, err
		}
	}
}
