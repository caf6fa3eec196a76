package agentapi

import (
	"connectrpc.com/connect"

	trellisv1 "trellis/api/trellis/v1"
)

// CaptureWriter sends what is written as the answer to a Capture.
type CaptureWriter struct {
	Stream *connect.ServerStream[trellisv1.CaptureResponse]
}

func (w CaptureWriter) Write(b []byte) (int, error) {
	if err := w.Stream.Send(&trellisv1.CaptureResponse{Pcap: b}); err != nil {
		return 0, err
	}
	return len(b), nil
}
