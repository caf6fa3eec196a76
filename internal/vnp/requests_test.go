package vnp_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	trellisv1 "trellis/api/trellis/v1"
	"trellis/internal/plan"
	"trellis/internal/store"
)

// TestRetriesAreNotFailures has an agent fail twice before it succeeds: the wait
// tells of it, and nothing is removed.
func TestRetriesAreNotFailures(t *testing.T) {
	subs, st, c := serveOn(t, "alpha")
	plans := make(chan *plan.Plan, 1)
	subs["alpha"].set(func(p *plan.Plan) []store.Status {
		if p.Empty() {
			return works(p)
		}
		plans <- p
		return []store.Status{
			{Phase: store.PhaseCreating, Attempt: 1, Error: "start a: crun was killed"},
			{Phase: store.PhaseCreating, Attempt: 2, Error: "start a: crun was killed"},
		}
	})
	stream, err := c.Apply(within(t, 20*time.Second), connect.NewRequest(&trellisv1.ApplyRequest{Vnet: description("x"), Wait: true}))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	var told, done bool
	for stream.Receive() {
		if !told && strings.Contains(stream.Msg().GetProgress().GetDetail(), "retrying: start a: crun was killed (attempt ") {
			told = true
			p := <-plans // and now it works
			for _, status := range works(p) {
				status.Generation = p.Generation
				if err := st.PutStatus(t.Context(), "alpha", "x", &status); err != nil {
					t.Fatal(err)
				}
			}
		}
		done = done || stream.Msg().GetResult() != nil
	}
	if err := stream.Err(); err != nil || !done || !told {
		t.Errorf("done %v, told %v, %v", done, told, err)
	}
}

// TestWhatWasInPlaceStays has an agent give up on a new VNet that it had in place.
func TestWhatWasInPlaceStays(t *testing.T) {
	subs, st, c := serveOn(t, "alpha")
	subs["alpha"].set(func(p *plan.Plan) []store.Status {
		if p.Empty() {
			return works(p)
		}
		return append(works(p)[:2], store.Status{Phase: store.PhaseFailed, Attempt: 6, Error: "start a: crun was killed", CreatedAt: time.Now()})
	})
	_, _, _, err := apply(t.Context(), c, &trellisv1.ApplyRequest{Vnet: description("x"), Wait: true})
	wantError(t, err, connect.CodeFailedPrecondition, "crun was killed (given up after 6 attempts)", "what is in place stays", "`trellis down x`")
	if rec, err := st.VNet(t.Context(), "x"); err != nil || rec.State != store.Present {
		t.Errorf("the record is %v, %v", rec, err)
	}
}

// TestAnOlderUpLeavesALaterOne has a first `up` wait for routes while a second one
// fails: it is not its own failure, and nothing is removed.
func TestAnOlderUpLeavesALaterOne(t *testing.T) {
	subs, st, c := serveOn(t, "alpha")
	subs["alpha"].set(func(p *plan.Plan) []store.Status {
		switch {
		case p.Empty():
			return works(p)
		case p.Nodes[0].Limits.CPU == 0.5:
			return []store.Status{{Phase: store.PhaseFailed, Error: "crun is gone"}}
		}
		return works(p)[:1] // and nothing more
	})
	first := make(chan error, 1)
	go func() {
		_, _, _, err := apply(t.Context(), c, &trellisv1.ApplyRequest{Vnet: description("x"), Wait: true})
		first <- err
	}()
	until(t, func() bool { _, err := st.VNet(t.Context(), "x"); return err == nil })
	v := description("x")
	v.Nodes[0].Cpu = 0.5
	_, _, _, err := apply(t.Context(), c, &trellisv1.ApplyRequest{Vnet: v, Wait: true})
	wantError(t, err, connect.CodeFailedPrecondition, "crun is gone", "what is in place stays")
	wantError(t, <-first, connect.CodeAborted, "changed by a later request, which has failed: crun is gone")
	if rec, err := st.VNet(t.Context(), "x"); err != nil || rec.State != store.Present || rec.Spec.Nodes[0].CPU != 0.5 {
		t.Errorf("the record is %v, %v", rec, err)
	}
}

// TestDownEndsAnUp takes a network down that is coming up: while its image is
// fetched, and while it waits for routes.
func TestDownEndsAnUp(t *testing.T) {
	for name, hang := range map[string]func(*substrate){
		"pull": func(s *substrate) { s.fetch = make(chan struct{}) },
		"routes": func(s *substrate) {
			s.set(func(p *plan.Plan) []store.Status {
				if p.Empty() {
					return works(p)
				}
				return works(p)[:1]
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			subs, st, c := serveOn(t, "alpha")
			hang(subs["alpha"])
			up := make(chan error, 1)
			go func() {
				_, _, _, err := apply(t.Context(), c, &trellisv1.ApplyRequest{Vnet: description("x"), Wait: true})
				up <- err
			}()
			if name == "pull" {
				until(t, func() bool { return subs["alpha"].fetching.Load() > 0 })
			} else {
				until(t, func() bool { _, err := st.VNet(t.Context(), "x"); return err == nil })
			}
			if _, err := remove(within(t, 5*time.Second), c, &trellisv1.DeleteRequest{Name: "x"}); err != nil {
				t.Errorf("down: %v", err)
			}
			wantError(t, <-up, connect.CodeAborted, "VNet x was taken down by another request")
			if _, err := st.VNet(t.Context(), "x"); !errors.Is(err, store.ErrNotFound) {
				t.Errorf("the record: %v", err)
			}
		})
	}
}

// TestAPullHoldsNothingUp changes a network while another request for it fetches an
// image that never comes.
func TestAPullHoldsNothingUp(t *testing.T) {
	subs, _, c := serveOn(t, "alpha")
	mustApply(t, c, "x")
	sub := subs["alpha"]
	sub.mu.Lock()
	sub.fetch = make(chan struct{})
	sub.mu.Unlock()
	go apply(t.Context(), c, &trellisv1.ApplyRequest{Vnet: changed(description("x"), 0.25)})
	until(t, func() bool { return sub.fetching.Load() > 0 })
	sub.mu.Lock()
	sub.fetch = nil
	sub.mu.Unlock()
	rate := uint64(5e6)
	if _, err := c.SetLink(within(t, 5*time.Second), connect.NewRequest(&trellisv1.SetLinkRequest{Vnet: "x", Link: "ab", Rate: &rate})); err != nil {
		t.Errorf("link set: %v", err)
	}
	if _, _, _, err := apply(within(t, 5*time.Second), c, &trellisv1.ApplyRequest{Vnet: changed(description("x"), 0.5)}); err != nil {
		t.Errorf("up: %v", err)
	}
}

// TestTheNearestNameIsSuggested asks for a network that is not there.
func TestTheNearestNameIsSuggested(t *testing.T) {
	_, _, c := serveOn(t, "alpha")
	mustApply(t, c, "abilene")
	const want = `there is no VNet "abilen"; did you mean "abilene"?`
	_, err := c.Get(t.Context(), connect.NewRequest(&trellisv1.GetRequest{Name: "abilen"}))
	wantError(t, err, connect.CodeNotFound, want)
	_, err = remove(t.Context(), c, &trellisv1.DeleteRequest{Name: "abilen"})
	wantError(t, err, connect.CodeNotFound, want)
	rate := uint64(5e6)
	_, err = c.SetLink(t.Context(), connect.NewRequest(&trellisv1.SetLinkRequest{Vnet: "abilen", Link: "ab", Rate: &rate}))
	wantError(t, err, connect.CodeNotFound, want)
	_, err = c.Get(t.Context(), connect.NewRequest(&trellisv1.GetRequest{Name: "quite-different"}))
	wantError(t, err, connect.CodeNotFound, "`trellis ls` lists those there are")
}

func changed(v *trellisv1.VNet, cpu float64) *trellisv1.VNet {
	v.Nodes[0].Cpu = cpu
	return v
}

func until(t *testing.T, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it does not come to that")
		}
	}
}
