package store

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"trellis/internal/vnet"
)

// Liveness.
const (
	// hostTTL is after how long without a word an agent counts as vanished. etcd
	// may stretch it to one and a half of its election timeouts.
	hostTTL = 3 * time.Second
	// hostHeartbeat is how often an agent renews its lease.
	hostHeartbeat = hostTTL / 3
	// nameWait is how long a registration waits for a namesake to be gone: the
	// lease of one that has died runs out within it.
	nameWait = hostTTL + 2*time.Second
	// namePoll is how often it looks.
	namePoll = 200 * time.Millisecond
)

// Registration keeps a substrate node's record, and the agent alive in it, for
// as long as it is not closed. When the store goes away it waits, and when the
// store is back it registers anew.
type Registration struct {
	s          *Store
	nonce      string
	life       context.Context // ends with Close, or with the cause in Err
	end        context.CancelCauseFunc
	wake       chan struct{}
	heartbeats sync.WaitGroup
	// refused is why it could not be registered anew the last time; beat's own.
	refused string

	mu        sync.Mutex
	host      Host
	claimOnly bool          // only the name is claimed yet; the record is not written
	written   chan struct{} // closed, and made anew, when the record was written
	stored    int           // changes that are in the store
	changes   int           // changes that were made
	lease     clientv3.LeaseID
	aliveAt   int64 // revision of our liveness
}

var errRegistrationClosed = errors.New("the registration is closed")

// Register makes a substrate node known to the others, and its agent alive, and
// returns when it is both. It fails with ErrNameTaken when another live agent
// has the name, and when live agents speak another protocol.
//
// The host's Protocol and Clock are filled in.
func (s *Store) Register(ctx context.Context, h Host) (*Registration, error) {
	return s.register(ctx, h, false)
}

// Claim is Register for a host that does not know yet what it offers: it has the
// name from now on, and is known to the others from the first Update on, or as
// it was the last time.
func (s *Store) Claim(ctx context.Context, h Host) (*Registration, error) {
	return s.register(ctx, h, true)
}

func (s *Store) register(ctx context.Context, h Host, claimOnly bool) (*Registration, error) {
	if err := vnet.CheckHost(h.Name); err != nil {
		return nil, err
	}
	if h.ID == "" {
		return nil, fmt.Errorf("register host %s: it has no id", h.Name)
	}
	h.Protocol = Protocol
	r := &Registration{s: s, nonce: rand.Text(), host: h, claimOnly: claimOnly, wake: make(chan struct{}, 1), written: make(chan struct{})}
	r.life, r.end = context.WithCancelCause(context.Background())
	if err := r.acquireName(ctx, nameWait); err != nil {
		r.end(err)
		return nil, err
	}
	r.heartbeats.Go(r.heartbeat)
	r.heartbeats.Go(r.watchPeers)
	return r, nil
}

// Update changes the record; change must keep the name and the id. It is
// written soon, or when the store is back.
func (r *Registration) Update(change func(*Host)) {
	r.mu.Lock()
	change(&r.host)
	r.claimOnly = false
	r.changes++
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Flush returns when all that was updated is in the store.
func (r *Registration) Flush(ctx context.Context) error {
	for {
		r.mu.Lock()
		done, written := r.stored == r.changes && !r.claimOnly, r.written
		r.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-written:
		case <-r.life.Done():
			return context.Cause(r.life)
		case <-ctx.Done():
			return fmt.Errorf("register host %s: %w", r.host.Name, context.Cause(ctx))
		}
	}
}

// markWritten notes that the record is in the store as of so many changes; under mu.
func (r *Registration) markWritten(changes int) {
	r.stored = changes
	close(r.written)
	r.written = make(chan struct{})
}

// Done is closed when the registration has ended; Err then says why.
func (r *Registration) Done() <-chan struct{} { return r.life.Done() }

// Err says why the registration has ended by itself; nil while it lasts, and
// when it was closed. That another agent has taken the name is an ErrNameTaken.
func (r *Registration) Err() error {
	if err := context.Cause(r.life); err != nil && !errors.Is(err, errRegistrationClosed) {
		return err
	}
	return nil
}

// Close ends the registration: the record stays, and the agent counts as gone
// at once, if the store answers.
func (r *Registration) Close() error {
	r.end(errRegistrationClosed)
	r.heartbeats.Wait()
	if r.Err() != nil || r.s.life.Err() != nil {
		return nil // the name is another's, or nothing can be said any more
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), hostHeartbeat, r.s.unavailable())
	defer cancel()
	name := r.host.Name
	gone, err := encode(time.Now())
	if err != nil {
		return err
	}
	_, err = r.s.commit(ctx, "end the registration", len(gone),
		[]clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(hostKey(name, fieldAlive)), "=", r.aliveAt)},
		[]clientv3.Op{
			clientv3.OpDelete(hostKey(name, fieldAlive)),
			clientv3.OpPut(hostKey(name, fieldGone), string(gone)),
		})
	if err == nil {
		_, err = r.s.client.Revoke(ctx, r.lease)
	}
	if err != nil && !errors.Is(err, ErrConflict) && !errors.Is(err, ErrUnavailable) { // else it has left already, or will
		// The lease runs out by itself within seconds.
		r.s.log.Warn("the host counts as live for some seconds more", "host", name, "error", err)
	}
	return nil
}

// acquireName takes the name, waiting so long for a namesake to be gone.
func (r *Registration) acquireName(ctx context.Context, timeout time.Duration) error {
	name := r.host.Name
	deadline := time.Now().Add(timeout)
	for {
		entries, err := r.s.hosts(ctx)
		if err != nil {
			return fmt.Errorf("register host %s: %w", name, err)
		}
		if err := checkLiveProtocols(name, entries); err != nil {
			return err
		}
		current := entries[name]
		if current == nil {
			current = &hostEntry{}
		}
		if current.alive == nil || current.alive.ID == r.host.ID {
			err := r.writeRegistration(ctx, current)
			if err == nil || !errors.Is(err, ErrConflict) {
				return err
			}
			continue
		}
		if time.Now().After(deadline) {
			return nameTaken(name, current)
		}
		select {
		case <-time.After(namePoll):
		case <-ctx.Done():
			return fmt.Errorf("register host %s: %w", name, context.Cause(ctx))
		}
	}
}

// nameTaken is the refusal of a name that a live agent has.
func nameTaken(name string, by *hostEntry) error {
	where := ""
	if h := by.record; h != nil && h.ID == by.alive.ID && len(h.Addrs) > 0 {
		where = fmt.Sprintf(" at %v", h.Addrs[0])
	}
	return sentence{fmt.Sprintf("another live agent%s is called %q since %s; give this machine another name with `host:` in its configuration, or stop the other",
		where, name, by.alive.Since.Format(time.DateTime)), ErrNameTaken}
}

// writeRegistration writes the record and the liveness in the place of what was there.
func (r *Registration) writeRegistration(ctx context.Context, current *hostEntry) error {
	r.mu.Lock()
	r.host.Clock = r.s.now()
	h, changes, claimOnly := r.host, r.changes, r.claimOnly
	r.mu.Unlock()
	doing := "register host " + h.Name
	record, err := encode(h)
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	alive, err := encode(session{ID: h.ID, Nonce: r.nonce, Since: time.Now(), Protocol: h.Protocol, Version: h.Version})
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	bounded, cancel := r.s.call(ctx)
	defer cancel()
	lease, err := r.s.client.Grant(bounded, int64(hostTTL/time.Second))
	if err != nil {
		return r.s.describeError(bounded, doing, err)
	}
	key := hostKey(h.Name, fieldAlive)
	ops := []clientv3.Op{
		clientv3.OpPut(key, string(alive), clientv3.WithLease(lease.ID)),
		clientv3.OpDelete(hostKey(h.Name, fieldGone)),
	}
	if !claimOnly {
		ops = append(ops, clientv3.OpPut(hostKey(h.Name, fieldRecord), string(record)))
	}
	revision, err := r.s.commit(ctx, doing, len(record)+len(alive),
		[]clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(key), "=", current.aliveAt)}, ops)
	if err != nil {
		return err // the lease runs out by itself
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lease, r.aliveAt = lease.ID, revision
	if !claimOnly {
		r.markWritten(changes)
	}
	return nil
}

// heartbeat keeps the lease and writes changes until the registration ends.
func (r *Registration) heartbeat() {
	tick := time.NewTicker(hostHeartbeat)
	defer tick.Stop()
	heartbeats := r.keepAlive()
	for {
		select {
		case <-r.life.Done():
			return
		case <-r.s.life.Done():
			r.end(context.Cause(r.s.life))
			return
		case _, ok := <-heartbeats:
			if !ok {
				heartbeats = nil // run out, or nobody has answered for so long
			}
			continue
		case <-tick.C:
			if heartbeats == nil && r.reregister() {
				heartbeats = r.keepAlive()
			}
		case <-r.wake:
		}
		if heartbeats == nil {
			continue
		}
		if err := r.writeRecord(); err != nil && r.life.Err() == nil {
			r.s.log.Debug("the host's record is not written yet", "error", err)
		}
	}
}

// keepAlive has the lease renewed; the channel is closed when it cannot be any more.
func (r *Registration) keepAlive() <-chan *clientv3.LeaseKeepAliveResponse {
	heartbeats, err := r.s.client.KeepAlive(r.life, r.lease)
	if err != nil {
		return nil // the client is closed
	}
	return heartbeats
}

// reregister registers anew after the lease has run out: the store was away, or this
// process stood still.
func (r *Registration) reregister() bool {
	err := r.acquireName(r.life, 0)
	switch {
	case err == nil:
		r.refused = ""
		r.s.log.Info("registered again", "host", r.host.Name)
		return true
	case errors.Is(err, ErrNameTaken):
		r.end(err)
	case errors.Is(err, ErrUnavailable) || r.life.Err() != nil: // that is logged once for all
	case err.Error() != r.refused:
		r.refused = err.Error()
		r.s.log.Warn("the host counts as vanished", "host", r.host.Name, "error", err)
	}
	return false
}

// writeRecord stores the record if it has changed since it was stored.
func (r *Registration) writeRecord() error {
	r.mu.Lock()
	if r.stored == r.changes {
		r.mu.Unlock()
		return nil
	}
	r.host.Clock = r.s.now()
	h, changes, aliveAt := r.host, r.changes, r.aliveAt
	r.mu.Unlock()
	doing := "update host " + h.Name
	value, err := encode(h)
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	_, err = r.s.commit(r.life, doing, len(value),
		[]clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(hostKey(h.Name, fieldAlive)), "=", aliveAt)},
		[]clientv3.Op{clientv3.OpPut(hostKey(h.Name, fieldRecord), string(value))})
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.markWritten(changes)
	return nil
}

// watchPeers notes when other agents vanish, for Seen, and ends the registration
// when another process has taken its name.
func (r *Registration) watchPeers() {
	for c := range watch(r.life, r.s, hostPrefix, func(c change) change { return c }) {
		if c.synced {
			continue
		}
		name, field := splitHostKey(c.key)
		if field != fieldAlive {
			continue
		}
		if c.value == nil {
			if name != r.host.Name {
				r.recordGone(name)
			}
			continue
		}
		if s := (&session{}); name == r.host.Name && decode(c.value, s) == nil && s.Nonce != r.nonce {
			if s.ID == r.host.ID {
				r.end(sentence{fmt.Sprintf("another trellis serve has started as host %q on this machine, with this state directory", name), ErrNameTaken})
			} else {
				r.end(nameTaken(name, &hostEntry{alive: s}))
			}
		}
	}
}

// recordGone writes down when a host was seen to vanish, unless somebody has.
func (r *Registration) recordGone(name string) {
	value, err := encode(time.Now())
	if err != nil {
		return
	}
	_, err = r.s.commit(r.life, "note that host "+name+" has vanished", len(value),
		[]clientv3.Cmp{
			clientv3.Compare(clientv3.CreateRevision(hostKey(name, fieldAlive)), "=", 0),
			clientv3.Compare(clientv3.CreateRevision(hostKey(name, fieldGone)), "=", 0),
			clientv3.Compare(clientv3.CreateRevision(hostKey(name, fieldRecord)), ">", 0),
		},
		[]clientv3.Op{clientv3.OpPut(hostKey(name, fieldGone), string(value))})
	if err != nil && !errors.Is(err, ErrConflict) && r.life.Err() == nil {
		r.s.log.Debug("when a host vanished is not noted", "host", name, "error", err)
	}
}
