package store

import (
	"errors"
	"fmt"
	"time"

	"trellis/internal/plan"
	"trellis/internal/vnet"
)

// Errors that callers distinguish.
var (
	// ErrNotFound is returned for a VNet or plan that the store does not have.
	ErrNotFound = errors.New("not in the store")
	// ErrConflict is returned when a record has changed since it was read, or
	// when its id range is another VNet's.
	ErrConflict = errors.New("changed by another request meanwhile")
	// ErrNoSpace is returned when the disk, or the quota of the store, is full.
	ErrNoSpace = errors.New("no space left for the store")
)

// NotFound makes an error about something that is not there. It reads as the
// sentence that is given, and is an ErrNotFound.
func NotFound(format string, args ...any) error {
	return notFound(fmt.Sprintf(format, args...))
}

type notFound string

func (e notFound) Error() string        { return string(e) }
func (e notFound) Is(target error) bool { return target == ErrNotFound }

// State is what is wanted of a VNet.
type State string

// States of a VNet.
const (
	Present  State = "present"  // its plans are to be converged to
	Removing State = "removing" // its plans are empty; forgotten when the agents have removed it
)

// VNetRecord is an admitted VNet.
type VNetRecord struct {
	// Spec is the completed description of what runs, links changed in place
	// included.
	Spec *vnet.VNet `json:"spec"`
	// IDBase is the first of the VNet's 65,536 user and group ids; no two
	// records have the same. 0: none.
	IDBase uint32 `json:"idBase"`
	// Created is when the VNet was first admitted.
	Created time.Time `json:"created"`
	State   State     `json:"state"`
	// Generation grows by one with every change; that of a new record is larger
	// than those of all records of the same name before it.
	Generation int64 `json:"generation"`
	// Hosts are the substrate nodes that hold, or may still hold, some of it.
	Hosts []string `json:"hosts"`
	// Placement is the substrate node of each virtual node, by name; also of nodes
	// that are not in Spec any more, while their substrate node has vanished.
	Placement map[string]string `json:"placement,omitempty"`
	// Keys are the EGRE keys of the VNet's spans, by plan.Spans' names. No two
	// spans have the same, whichever VNets they belong to; see [Store.DrawKeys].
	Keys map[string]uint32 `json:"keys,omitempty"`

	revision int64 // of the store, when it was read; 0: new
}

// IsNew reports whether the record was never stored.
func (r *VNetRecord) IsNew() bool { return r.revision == 0 }

// Name is the VNet's name.
func (r *VNetRecord) Name() string { return r.Spec.Name }

// PlanEvent is one message of a plan watch.
type PlanEvent struct {
	VNet string
	// Plan is nil when the plan is gone from the store: nothing of the VNet is
	// to be left, and no status is wanted any more.
	Plan *plan.Plan
	// Err is set, and Plan is nil, when the stored plan cannot be read; what
	// runs of it is best left alone.
	Err error
	// Synced marks the end of what was there when the watch began; VNet is empty.
	Synced bool
	// Revision grows with the changes of the store: of two events of one watch, that
	// with the larger one is the later. 0: not known.
	Revision int64
}

// StatusEvent is one message of a status watch.
type StatusEvent struct {
	VNet, Host string
	Status     *Status // nil: deleted, the VNet is forgotten
	Err        error   // the stored status cannot be read
	Synced     bool    // end of what was there when the watch began
}

// Phase is how far an agent is with a generation of a plan.
type Phase string

// Phases. A plan goes through removing, creating, created, converged; an empty
// plan's is removing, removed. Either may end as failed.
const (
	PhaseRemoving  Phase = "removing"  // what is not wanted goes
	PhaseCreating  Phase = "creating"  // what is missing comes
	PhaseCreated   Phase = "created"   // all is in place; routing may still be learning
	PhaseConverged Phase = "converged" // every FIB is complete
	PhaseFailed    Phase = "failed"    // the agent has given up: it cannot get better, or has failed too often
	PhaseRemoved   Phase = "removed"   // nothing is left
)

// Limits of what a status names; the rest is only counted.
const (
	MaxMissing         = 20 // nodes in Status.Missing
	MaxMissingPrefixes = 5  // prefixes for each
)

// Status is what the agent of one substrate node reports about one VNet. The
// agent writes it when something has changed, at most a few times a second.
type Status struct {
	Generation int64 `json:"generation"` // of the plan that this is about
	Phase      Phase `json:"phase"`
	Done       int   `json:"done,omitempty"`  // steps of the phase that are carried out
	Total      int   `json:"total,omitempty"` // steps of the phase
	// Converged counts the nodes whose FIB is complete, Routers those that are
	// waited for.
	Converged int `json:"converged,omitempty"`
	Routers   int `json:"routers,omitempty"`
	// Missing names nodes without a complete FIB, at most MaxMissing of
	// MissingNodes.
	Missing      []Missing            `json:"missing,omitempty"`
	MissingNodes int                  `json:"missingNodes,omitempty"`
	Nodes        map[string]NodeState `json:"nodes,omitempty"`
	// Error is why the last pass has failed. With PhaseFailed the agent has given
	// up; in any other phase it tries again.
	Error string `json:"error,omitempty"`
	// Attempt counts the passes that have failed in a row; 0: the last has not.
	Attempt int       `json:"attempt,omitempty"`
	RetryAt time.Time `json:"retryAt,omitzero"` // when the next pass begins; zero: none is due
	// Doing names what the agent waits for that takes long, for people: "n1 runs
	// `apt-get update`".
	Doing       string    `json:"doing,omitempty"`
	CreatedAt   time.Time `json:"createdAt,omitzero"`
	ConvergedAt time.Time `json:"convergedAt,omitzero"`
	Changes     int       `json:"changes,omitempty"` // steps carried out for this generation
	// Paths names links' paths to other substrate nodes that are down or too
	// narrow, at most MaxMissing of FaultyPaths. A down path keeps the VNet
	// from nothing but its packets.
	Paths       []PathFault `json:"paths,omitempty"`
	FaultyPaths int         `json:"faultyPaths,omitempty"`
}

// Missing is a node that has not learned all routes.
type Missing struct {
	Node     string   `json:"node"`
	Prefixes []string `json:"prefixes"` // at most MaxMissingPrefixes
	Count    int      `json:"count"`    // all that are missing
}

// PathFault is a path to another substrate node that is not as it should be.
type PathFault struct {
	Link    string `json:"link"`
	Peer    string `json:"peer"`           // the other substrate node
	Down    bool   `json:"down,omitempty"` // else it is too narrow
	Message string `json:"message"`        // one sentence
}

// NodeState is the state of one node's container.
type NodeState struct {
	State    string `json:"state"` // starting | running | degraded | restarting | failed
	Pid      int    `json:"pid,omitempty"`
	Restarts int    `json:"restarts,omitempty"`
	Message  string `json:"message,omitempty"`
	Repairs  int    `json:"repairs,omitempty"` // of what its root did to its own interfaces
}

// States of a node.
const (
	NodeStarting   = "starting"
	NodeRunning    = "running"
	NodeDegraded   = "degraded" // it runs, and a service in it fails, or an interface is not as it was made
	NodeRestarting = "restarting"
	NodeFailed     = "failed"
)
