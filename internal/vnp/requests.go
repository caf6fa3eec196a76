package vnp

import (
	"context"
	"fmt"
	"sync"

	"connectrpc.com/connect"
)

// requests are the changes of VNets that are being served, so that a removal can
// end them, and an older one does not undo what a later one has done.
type requests struct {
	mu     sync.Mutex
	last   uint64
	active map[string][]*request // by VNet
}

// request is one change that is being served.
type request struct {
	all      *requests
	vnet     string
	number   uint64
	cancel   context.CancelCauseFunc
	ended    chan struct{}
	admitted bool // its description is in the store; under requests.mu
}

// begin notes a request; end must follow. The context ends with a removal of the
// VNet.
func (r *requests) begin(ctx context.Context, vnet string) (context.Context, *request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last++
	q := &request{all: r, vnet: vnet, number: r.last, ended: make(chan struct{})}
	ctx, q.cancel = context.WithCancelCause(ctx)
	if r.active == nil {
		r.active = map[string][]*request{}
	}
	r.active[vnet] = append(r.active[vnet], q)
	return ctx, q
}

func (q *request) end() {
	q.cancel(nil)
	q.all.mu.Lock()
	defer q.all.mu.Unlock()
	var others []*request
	for _, o := range q.all.active[q.vnet] {
		if o != q {
			others = append(others, o)
		}
	}
	if others == nil {
		delete(q.all.active, q.vnet)
	} else {
		q.all.active[q.vnet] = others
	}
	close(q.ended)
}

// markAdmitted notes that the request's description is in the store.
func (q *request) markAdmitted() {
	q.all.mu.Lock()
	defer q.all.mu.Unlock()
	q.admitted = true
}

// superseded is an error when a request that came later has been admitted.
func (q *request) superseded() error {
	q.all.mu.Lock()
	defer q.all.mu.Unlock()
	for _, o := range q.all.active[q.vnet] {
		if o.number > q.number && o.admitted {
			return connect.NewError(connect.CodeAborted,
				fmt.Errorf("VNet %s was changed by a later request, which holds; this one has changed nothing", q.vnet))
		}
	}
	return nil
}

// cancel ends what is being done to a VNet, and returns when it has ended, or with
// the context; of all VNets when the name is empty. It tells how many requests
// there were.
func (r *requests) cancel(ctx context.Context, vnet string) (ended int) {
	r.mu.Lock()
	var ending []*request
	for name, active := range r.active {
		if vnet == "" || name == vnet {
			ending = append(ending, active...)
		}
	}
	r.mu.Unlock()
	for _, q := range ending {
		q.cancel(connect.NewError(connect.CodeAborted, fmt.Errorf("VNet %s was taken down by another request", q.vnet)))
	}
	for _, q := range ending {
		select {
		case <-q.ended:
		case <-ctx.Done():
			return len(ending)
		}
	}
	return len(ending)
}
