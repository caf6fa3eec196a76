package agentapi

import (
	"connectrpc.com/connect"

	trellisv1 "trellis/api/trellis/v1"
)

// LogSender returns a function that sends what is read of logs as the answer to a
// request.
func LogSender(stream *connect.ServerStream[trellisv1.LogsResponse]) func(service string, text []byte) error {
	return func(service string, text []byte) error {
		return stream.Send(&trellisv1.LogsResponse{Service: service, Text: text})
	}
}

// LogQueryOf gives a request's query.
func LogQueryOf(m *trellisv1.LogsRequest) LogQuery {
	return LogQuery{Service: m.Service, Tail: int(max(m.Tail, 0)), Follow: m.Follow}
}
