package fleet

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"trellis/internal/agentapi"
	"trellis/internal/store"
)

// Config says who is in the fleet. Host and Hosts are required.
type Config struct {
	Host  string         // name of this substrate node
	Local agentapi.Agent // its agent; nil: it has none
	// Hosts tells of all substrate nodes, by name.
	Hosts func(ctx context.Context) (map[string]store.HostState, error)
	// TLS holds this machine's certificate, and the authority of the others as
	// RootCAs. Nil: other machines cannot be asked.
	TLS *tls.Config
}

// Fleet reaches the agents of all substrate nodes. Its methods may be called side
// by side.
type Fleet struct {
	config Config

	mu      sync.Mutex
	clients map[string]*client // by substrate node
}

// New makes a fleet. Nothing is dialled before it is needed.
func New(c Config) *Fleet { return &Fleet{config: c, clients: map[string]*client{}} }

// Agent gives the agent of a substrate node. The error is a sentence on why
// it cannot be asked: a [*agentapi.Unreachable] where another time it could, and a
// store.ErrNotFound where there is no such substrate node.
func (f *Fleet) Agent(ctx context.Context, host string) (agentapi.Agent, error) {
	if host == f.config.Host {
		if f.config.Local == nil {
			return nil, fmt.Errorf("substrate node %s runs no agent: its configuration leaves that role out", host)
		}
		return f.config.Local, nil
	}
	hosts, err := f.config.Hosts(ctx)
	if err != nil {
		return nil, err
	}
	h, known := hosts[host]
	if !known {
		return nil, store.UnknownHost(host, slices.Collect(maps.Keys(hosts)))
	}
	if err := f.askable(h); err != nil {
		return nil, err
	}
	return f.client(h), nil
}

// remedy ends the sentence about a substrate node that does not answer.
const remedy = "; what runs there goes on: `trellis substrate ls` shows whether it is back, and `trellis serve` there starts it again"

// askable says why a substrate node cannot be asked.
func (f *Fleet) askable(h store.HostState) error {
	switch {
	case !h.Alive:
		return &agentapi.Unreachable{Host: h.Name, Why: fmt.Sprintf("substrate node %s%s", h.Silence(), remedy)}
	case h.Protocol != store.Protocol:
		return fmt.Errorf("substrate node %s runs another version of Trellis (%s, protocol %d; protocol %d here); give both the same",
			h.Name, h.Version, h.Protocol, store.Protocol)
	case h.API == "":
		return fmt.Errorf("substrate node %s cannot be asked from other machines: set `listen` in its configuration", h.Name)
	case f.config.TLS == nil:
		return fmt.Errorf("substrate node %s cannot be asked: this machine, %s, has no certificate; set `tls` in its configuration", h.Name, f.config.Host)
	}
	return nil
}

// client gives the client of a substrate node, a new one when it has moved.
func (f *Fleet) client(h store.HostState) *client {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.clients[h.Name]
	if c == nil || c.api != h.API {
		if c != nil {
			c.close()
		}
		c = dial(h.Name, h.API, f.config.TLS)
		f.clients[h.Name] = c
	}
	return c
}

// Close ends the connections that no request uses. Those of requests end with
// them.
func (f *Fleet) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.clients {
		c.close()
	}
	clear(f.clients)
}

var errNoCertificate = errors.New("the configuration holds no certificate and no authority")
