package agentapi

import (
	"errors"
	"sync"
	"testing"

	trellisv1 "trellis/api/trellis/v1"
)

// fakeStream counts what is sent.
type fakeStream struct {
	mu   sync.Mutex
	sent int
}

func (s *fakeStream) Send(*trellisv1.ExecResponse) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent++
	return nil
}

// A process may write when its call has ended: a child that outlives it holds its
// standard output. HTTP's server panics if that is sent.
func TestNothingIsSentAfterTheCall(t *testing.T) {
	stream := &fakeStream{}
	out := &execStream{stream: stream}
	w := execWriter{out, func(b []byte) *trellisv1.ExecResponse {
		return &trellisv1.ExecResponse{Message: &trellisv1.ExecResponse_Stdout{Stdout: b}}
	}}
	if n, err := w.Write([]byte("early")); n != 5 || err != nil {
		t.Fatalf("wrote %d bytes, %v", n, err)
	}
	out.end()
	if n, err := w.Write([]byte("late")); n != 0 || !errors.Is(err, errExecEnded) {
		t.Errorf("after the call %d bytes are written, %v", n, err)
	}
	if stream.sent != 2 { // that it has started, and "early"
		t.Errorf("%d messages were sent", stream.sent)
	}
}
