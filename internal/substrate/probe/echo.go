package probe

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// echoBatch is the work of one socket: the echoes of one node in one family.
type echoBatch struct {
	node   Node
	family string
	echoes []echo
	// open indexes the echoes without an answer so far.
	open []int
	// reasons says why an open echo failed, where a try has told more than that
	// nothing came back.
	reasons map[int]string
	refused bool // a node has answered an echo of the latest try with an ICMP error
	// srtt and rttvar are the smoothed round-trip time and its variation (RFC
	// 6298, section 2); 0 before the first reply.
	srtt, rttvar time.Duration
}

// echo is one pair's request.
type echo struct {
	pair     int // index in Ping's pairs
	to       netip.Addr
	answered bool
	rtt      time.Duration
}

// pass is one try of a batch: every open echo once, over one socket.
//
// Requests go out in the order of batch.open, whose index is their sequence
// number. At most window of them are on their way; one that has been for much
// longer than the others took no longer counts, so that silent destinations do
// not hold up the rest, but its reply is still accepted until the timeout.
type pass struct {
	*echoBatch
	sock    *echoSocket
	timeout time.Duration
	sent    []time.Time // by sequence number
	done    []bool      // answered or failed, by sequence number
	pending int         // sent, not done
	oldest  int         // first sequence number that counts for the window
	flying  int         // not done, of oldest and later
}

// run sends a request for every open echo and takes the answered ones off the
// open list.
func (b *echoBatch) run(ctx context.Context, window int, timeout time.Duration, m *meter) error {
	b.refused = false
	if b.reasons == nil {
		b.reasons = make(map[int]string)
	}
	sock, err := openEchoSocket(b.node.NS, b.family, b.node.addr(b.family))
	if errors.Is(err, unix.EADDRNOTAVAIL) {
		for _, i := range b.open {
			b.reasons[i] = fmt.Sprintf("%s does not have its address %v", b.node.Name, b.node.addr(b.family))
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("ping from %s: %w", b.node.Name, err)
	}
	defer sock.close()
	stop := context.AfterFunc(ctx, sock.wake)
	defer stop()

	p := &pass{
		echoBatch: b, sock: sock, timeout: timeout,
		sent: make([]time.Time, 0, len(b.open)), done: make([]bool, len(b.open)),
	}
	for !p.finished(time.Now()) {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := p.fill(window); err != nil {
			return fmt.Errorf("ping from %s: %w", b.node.Name, err)
		}
		answered, err := p.drain(p.wakeup(window))
		if err != nil {
			return fmt.Errorf("ping from %s: %w", b.node.Name, err)
		}
		m.add(answered)
	}
	left := b.open[:0]
	for _, i := range b.open {
		if !b.echoes[i].answered {
			left = append(left, i)
		}
	}
	b.open = left
	return nil
}

// finished reports whether every request was sent and is done or too old.
func (p *pass) finished(now time.Time) bool {
	if len(p.sent) < len(p.open) {
		return false
	}
	return p.pending == 0 || now.Sub(p.sent[len(p.sent)-1]) >= p.timeout
}

// expiry is how long a request counts for the window: the retransmission
// timer of RFC 6298, section 2, between 10 ms and the timeout.
func (p *pass) expiry() time.Duration {
	if p.srtt == 0 {
		return min(50*time.Millisecond, p.timeout)
	}
	return min(max(p.srtt+4*p.rttvar, 10*time.Millisecond), p.timeout)
}

// expire takes what has been on its way for too long out of the window.
func (p *pass) expire(now time.Time) {
	expiry := p.expiry()
	for ; p.oldest < len(p.sent); p.oldest++ {
		if p.done[p.oldest] {
			continue
		}
		if now.Sub(p.sent[p.oldest]) < expiry {
			return
		}
		p.flying--
	}
}

// fill sends requests until the window is full or all are sent.
func (p *pass) fill(window int) error {
	p.expire(time.Now())
	for len(p.sent) < len(p.open) && p.flying < window {
		seq := len(p.sent)
		now := time.Now()
		err := p.sock.send(p.echoes[p.open[seq]].to, uint16(seq))
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			return nil // the socket's own buffer is full: what flies must land first
		}
		p.sent = append(p.sent, now)
		p.pending++
		p.flying++
		if err != nil {
			if !pathError(err) {
				return fmt.Errorf("send an echo request to %v: %w", p.echoes[p.open[seq]].to, err)
			}
			p.finish(seq, fmt.Sprintf("cannot send: %v", err))
		}
	}
	return nil
}

// pathError reports whether sending failed for a reason that lies in the
// network of the node, and not in how it is probed.
func pathError(err error) bool {
	for _, e := range []error{
		unix.ENETUNREACH, unix.EHOSTUNREACH, unix.ENETDOWN, unix.EACCES, unix.EPERM,
		unix.EINVAL, unix.ENOBUFS, unix.EMSGSIZE, unix.EHOSTDOWN, unix.ENODEV, unix.ENONET,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// wakeup is when to stop waiting for answers: when the window opens again, or
// when the last request has timed out.
func (p *pass) wakeup(window int) time.Time {
	if len(p.sent) == 0 {
		return time.Now().Add(time.Millisecond)
	}
	if len(p.sent) == len(p.open) {
		return p.sent[len(p.sent)-1].Add(p.timeout)
	}
	if p.flying < window || p.oldest == len(p.sent) {
		return time.Now().Add(time.Millisecond) // the send buffer was full
	}
	return p.sent[p.oldest].Add(p.expiry())
}

// drain waits until something arrives or the time has come, takes all that is
// there, and returns the number of echo replies.
func (p *pass) drain(until time.Time) (int, error) {
	answered := 0
	if p.pending == 0 {
		return 0, nil
	}
	err := p.sock.receive(until, func(a answer, at time.Time) {
		seq := int(a.seq)
		if seq >= len(p.sent) || p.done[seq] {
			return
		}
		e := &p.echoes[p.open[seq]]
		if a.problem != "" {
			p.refused = true
			p.finish(seq, fmt.Sprintf("%s, says %v", a.problem, a.from))
			return
		}
		rtt := max(at.Sub(p.sent[seq]), 0)
		if a.from != e.to || rtt > p.timeout {
			return
		}
		e.answered, e.rtt = true, rtt
		p.learn(rtt)
		p.finish(seq, "")
		answered++
	})
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return answered, fmt.Errorf("receive echo replies: %w", err)
	}
	return answered, nil
}

// finish notes that nothing more is expected for a request.
func (p *pass) finish(seq int, reason string) {
	p.done[seq] = true
	p.pending--
	if seq >= p.oldest {
		p.flying--
	}
	if reason != "" {
		p.reasons[p.open[seq]] = reason
	}
}

// learn takes a round-trip time into the smoothed one.
func (b *echoBatch) learn(rtt time.Duration) {
	if b.srtt == 0 {
		b.srtt, b.rttvar = max(rtt, 1), rtt/2
		return
	}
	b.rttvar += ((b.srtt - rtt).Abs() - b.rttvar) / 4
	b.srtt = max(b.srtt+(rtt-b.srtt)/8, 1)
}

// token returns a random identifier and nonce for one socket's echoes.
func token() (id uint16, nonce uint64) { return uint16(rand.Uint32()), rand.Uint64() }
