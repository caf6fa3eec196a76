package wire

import (
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	trellisv1 "trellis/api/trellis/v1"
)

// FuzzFromProto: what a client sends as a description is refused, or is one that says
// the same when it is sent on.
func FuzzFromProto(f *testing.F) {
	for _, text := range []string{
		`{}`,
		`{"name": "n", "nodes": [{"name": "a"}, {"name": "b", "cpu": 0.5, "memory": "67108864"}], "links": [{"endpoints": [{"node": "a"}, {"node": "b"}]}]}`,
		`{"name": "n", "nodes": [{"name": "a", "exec": ["x"], "files": [{"path": "/etc/x", "content": "eA=="}]}], "routing": {"protocol": "ospf"}}`,
	} {
		var p trellisv1.VNet
		if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal([]byte(text), &p); err != nil {
			f.Fatal(err)
		}
		b, err := proto.Marshal(&p)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var p trellisv1.VNet
		if proto.Unmarshal(b, &p) != nil {
			return
		}
		v, err := FromProto(&p)
		if err != nil {
			return
		}
		sent := ToProto(v)
		again, err := FromProto(sent)
		if err != nil {
			t.Fatalf("what was taken is refused when it is sent on: %v\n%v", err, &p)
		}
		if !proto.Equal(ToProto(again), sent) {
			t.Errorf("sent on as\n%v\nand then as\n%v", sent, ToProto(again))
		}
	})
}
