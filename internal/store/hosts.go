package store

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"trellis/internal/plan"
	"trellis/internal/vnet"
)

// Host is what the agent of a substrate node publishes of it. The record stays in
// the store when the agent ends.
type Host struct {
	Name string `json:"name"`
	// ID distinguishes this state directory and boot of the machine from any other, so
	// that an agent that was killed can take its own name back at once, and
	// nobody else can while it lives.
	ID       string       `json:"id"`
	Instance string       `json:"instance"` // owner tag of all that the agent makes
	Version  string       `json:"version"`
	Protocol int          `json:"protocol"`
	Addrs    []netip.Addr `json:"addrs,omitempty"` // of the uplinks, IPv4 first; none: no links to other hosts
	MTU      int          `json:"mtu,omitempty"`   // least of the uplinks', bytes; 0: no uplink
	API      string       `json:"api,omitempty"`   // host:port of AgentService; empty: none
	Memory   int64        `json:"memory"`          // bytes that nodes may have
	CPU      float64      `json:"cpu"`             // cores that nodes may have
	Uplinks  []HostUplink `json:"uplinks,omitempty"`
	Clock    time.Time    `json:"clock"`             // of the host, when it wrote this
	Message  string       `json:"message,omitempty"` // what is wrong with the host, one sentence
}

// HostUplink is one underlay interface of a substrate node.
type HostUplink struct {
	Interface string `json:"interface"`
	XDP       string `json:"xdp,omitempty"`     // native, generic; empty: not attached
	Message   string `json:"message,omitempty"` // what is wrong with it, one sentence
}

// HostState is a substrate node as the store knows it.
type HostState struct {
	Host
	// Alive tells whether the agent has answered within the last seconds. What
	// it has built may go on without it.
	Alive bool
	// Seen is when the agent was last known to be alive, to some seconds.
	Seen time.Time

	revision int64 // of the record
	readAt   int64 // revision of the store when all were read
}

// Silence says for people that the host has vanished, and when: "beta has not
// been heard of for 12 s".
func (h HostState) Silence() string {
	since := max(0, time.Since(h.Seen))
	span := fmt.Sprintf("%.0f s", since.Seconds())
	switch {
	case since >= 48*time.Hour:
		span = fmt.Sprintf("%.0f days", since.Hours()/24)
	case since >= 2*time.Hour:
		span = fmt.Sprintf("%.0f h", since.Hours())
	case since >= 2*time.Minute:
		span = fmt.Sprintf("%.0f min", since.Minutes())
	}
	return h.Name + " has not been heard of for " + span
}

// HostEvent is one message of a watch of the substrate nodes.
type HostEvent struct {
	Name   string
	Host   *HostState // nil: forgotten
	Err    error      // the stored record cannot be read
	Synced bool       // end of what was there when the watch began; Name is empty
}

// ErrNameTaken is returned when another live agent has the host's name.
var ErrNameTaken = errors.New("name of a live host")

// Parts of a host in the store; see keys.go.
const (
	fieldAlive  = "alive"  // session, leased
	fieldGone   = "gone"   // time: when it was seen to vanish
	fieldRecord = "record" // Host
)

// session is the liveness of one agent process.
type session struct {
	ID    string    `json:"id"`    // Host.ID
	Nonce string    `json:"nonce"` // of the registration
	Since time.Time `json:"since"`
	// Protocol and Version are those of the process: until it has published what it
	// offers, the record is still that of the one before it.
	Protocol int    `json:"protocol,omitempty"`
	Version  string `json:"version,omitempty"`
}

// spokenProtocol is the protocol of a live agent, and its version; 0: not known.
func (p *hostEntry) spokenProtocol() (protocol int, version string) {
	if p.alive.Protocol == 0 && p.record != nil {
		return p.record.Protocol, p.record.Version
	}
	return p.alive.Protocol, p.alive.Version
}

// hostEntry is what there is of one host in the store.
type hostEntry struct {
	record    *Host
	alive     *session
	gone      time.Time
	aliveAt   int64 // revision of the liveness
	recordAt  int64 // revision of the record
	readAt    int64 // revision of the store when it was read
	recordErr error
}

// set stores a field; a nil value clears it.
func (p *hostEntry) set(field string, value []byte, revision int64) {
	switch field {
	case fieldAlive:
		p.alive, p.aliveAt = nil, revision
		if s := (&session{}); value != nil && decode(value, s) == nil {
			p.alive = s
		}
	case fieldGone:
		p.gone = time.Time{}
		if value != nil {
			_ = decode(value, &p.gone) // without, it is the record's time
		}
	case fieldRecord:
		p.record, p.recordErr, p.recordAt = nil, nil, revision
		if value == nil {
			return
		}
		h := &Host{}
		if p.recordErr = decode(value, h); p.recordErr == nil {
			p.record = h
		}
	}
}

func (p *hostEntry) empty() bool { return p.record == nil && p.recordErr == nil }

func (p *hostEntry) state() *HostState {
	if p.record == nil {
		return nil
	}
	s := &HostState{Host: *p.record, Alive: p.alive != nil, Seen: p.gone, revision: p.recordAt, readAt: p.readAt}
	switch {
	case s.Alive:
		s.Seen = time.Now()
	case s.Seen.IsZero():
		s.Seen = p.record.Clock
	}
	return s
}

// Hosts reads all substrate nodes that there ever were and that nobody has
// forgotten, by name.
func (s *Store) Hosts(ctx context.Context) (map[string]HostState, error) {
	entries, err := s.hosts(ctx)
	if err != nil {
		return nil, err
	}
	hosts := make(map[string]HostState, len(entries))
	for name, p := range entries {
		if p.recordErr != nil {
			return nil, fmt.Errorf("read host %s: %w", name, p.recordErr)
		}
		if st := p.state(); st != nil {
			hosts[name] = *st
		}
	}
	return hosts, nil
}

func (s *Store) hosts(ctx context.Context) (map[string]*hostEntry, error) {
	ctx, cancel := s.call(ctx)
	defer cancel()
	r, err := s.client.Get(ctx, hostPrefix, clientv3.WithPrefix())
	if err != nil {
		return nil, s.describeError(ctx, "list hosts", err)
	}
	s.noteAnswer(true)
	entries := map[string]*hostEntry{}
	for _, kv := range r.Kvs {
		name, field := splitHostKey(string(kv.Key))
		if entries[name] == nil {
			entries[name] = &hostEntry{readAt: r.Header.Revision}
		}
		entries[name].set(field, kv.Value, kv.ModRevision)
	}
	return entries, nil
}

// WatchHosts sends the substrate nodes: those there are, Synced, then each one
// again when something about it has changed, above all whether it is alive. The
// channel is closed when ctx ends or the store does.
func (s *Store) WatchHosts(ctx context.Context) <-chan HostEvent {
	out := make(chan HostEvent)
	changes := watch(ctx, s, hostPrefix, func(c change) change { return c })
	go func() {
		defer close(out)
		known := map[string]*hostEntry{}
		synced := false
		send := func(name string) {
			e := HostEvent{Name: name}
			if p := known[name]; p != nil {
				e.Host = p.state()
				if p.recordErr != nil {
					e.Err = fmt.Errorf("read host %s: %w", name, p.recordErr)
				}
			}
			select {
			case out <- e:
			case <-ctx.Done():
			case <-s.life.Done():
			}
		}
		for c := range changes {
			if c.synced {
				for name := range known {
					if !known[name].empty() {
						send(name)
					}
				}
				synced = true
				select {
				case out <- HostEvent{Synced: true}:
				case <-ctx.Done():
				case <-s.life.Done():
				}
				continue
			}
			name, field := splitHostKey(c.key)
			p := known[name]
			if p == nil {
				p = &hostEntry{}
				known[name] = p
			}
			current := p.empty()
			p.set(field, c.value, 0)
			if synced && !(current && p.empty()) {
				send(name)
			}
			if p.empty() && p.alive == nil && p.gone.IsZero() {
				delete(known, name)
			}
		}
	}()
	return out
}

// ForgetHost removes a substrate node that is gone for good. It fails while the
// agent lives, and while a VNet wants a part there. What is only left to be
// removed there does not count: nobody will do it.
func (s *Store) ForgetHost(ctx context.Context, name string) error {
	doing := "forget host " + name
	entries, err := s.hosts(ctx)
	if err != nil {
		return err
	}
	p := entries[name]
	if p == nil {
		return fmt.Errorf("%s: there is no such host; `trellis substrate ls` lists those there are: %w", doing, ErrNotFound)
	}
	if p.alive != nil {
		return fmt.Errorf("%s: its agent lives; stop it first", doing)
	}
	wanted, revision, err := s.plansOf(ctx, name)
	if err != nil {
		return err
	}
	if len(wanted) > 0 {
		return fmt.Errorf("%s: %s has a part there; take it down first", doing, strings.Join(wanted, ", "))
	}
	_, err = s.commit(ctx, doing, 0,
		[]clientv3.Cmp{
			clientv3.Compare(clientv3.CreateRevision(hostKey(name, fieldAlive)), "=", 0),
			// Of no plans at all, this is true.
			clientv3.Compare(clientv3.ModRevision(planKeys(name)), "<", revision+1).WithPrefix(),
		},
		[]clientv3.Op{clientv3.OpDelete(hostKeys(name), clientv3.WithPrefix())})
	return err
}

// plansOf names the VNets whose plan for a host asks for something, or cannot be
// read, as of a revision.
func (s *Store) plansOf(ctx context.Context, host string) (names []string, revision int64, err error) {
	ctx, cancel := s.call(ctx)
	defer cancel()
	r, err := s.client.Get(ctx, planKeys(host), clientv3.WithPrefix())
	if err != nil {
		return nil, 0, s.describeError(ctx, "list the plans of "+host, err)
	}
	for _, kv := range r.Kvs {
		p := &plan.Plan{}
		if err := decode(kv.Value, p); err != nil || !p.Empty() {
			names = append(names, strings.TrimPrefix(string(kv.Key), planKeys(host)))
		}
	}
	return names, r.Header.Revision, nil
}

// UnknownHost is the error about a substrate node that is not among the known
// ones; it is an ErrNotFound.
func UnknownHost(name string, known []string) error {
	hint := "`trellis substrate ls` lists those there are"
	if near := vnet.Nearest(name, known); near != "" {
		hint = fmt.Sprintf("did you mean %q?", near)
	}
	return NotFound("there is no substrate node %q; %s", name, hint)
}
