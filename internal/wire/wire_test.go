package wire

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	trellisv1 "trellis/api/trellis/v1"
	"trellis/internal/vnet"
)

// fill sets every field of a value to something that is not zero, so that a
// field which the conversion forgets shows.
func fill(t *testing.T, r *rand.Rand, v reflect.Value) {
	t.Helper()
	switch v.Interface().(type) {
	case netip.Prefix:
		a := netip.AddrFrom4([4]byte{10, byte(r.IntN(256)), byte(r.IntN(256)), byte(r.IntN(256))})
		v.Set(reflect.ValueOf(netip.PrefixFrom(a, 1+r.IntN(32))))
		return
	case netip.Addr:
		v.Set(reflect.ValueOf(netip.AddrFrom16([16]byte{0xfd, 15: byte(r.IntN(256))})))
		return
	case vnet.MAC:
		v.Set(reflect.ValueOf(vnet.MAC{2, byte(r.IntN(256)), 3}))
		return
	case time.Duration:
		v.SetInt(1 + r.Int64N(1e9))
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(string(rune('a'+r.IntN(26))) + "x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(1 + r.Int64N(1<<30))
	case reflect.Uint8, reflect.Uint32, reflect.Uint64:
		v.SetUint(1 + r.Uint64N(200))
	case reflect.Float64:
		v.SetFloat(r.Float64() + 0.001)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(t, r, v.Elem())
	case reflect.Struct:
		for i := range v.NumField() {
			fill(t, r, v.Field(i))
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range v.Len() {
			fill(t, r, v.Index(i))
		}
	case reflect.Array:
		for i := range v.Len() {
			fill(t, r, v.Index(i))
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for range 2 {
			key, val := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			fill(t, r, key)
			fill(t, r, val)
			v.SetMapIndex(key, val)
		}
	default:
		t.Fatalf("the model has a new kind of field, %s: teach this test to fill it", v.Type())
	}
}

var byValue = []cmp.Option{
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
}

func TestEveryFieldOfTheModelSurvivesTheWire(t *testing.T) {
	for seed := range uint64(50) {
		var v vnet.VNet
		fill(t, rand.New(rand.NewPCG(seed, 0)), reflect.ValueOf(&v).Elem())
		data, err := proto.Marshal(ToProto(&v))
		if err != nil {
			t.Fatal(err)
		}
		var p trellisv1.VNet
		if err := proto.Unmarshal(data, &p); err != nil {
			t.Fatal(err)
		}
		back, err := FromProto(&p)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(&v, back, byValue...); diff != "" {
			t.Fatalf("what went out (-) is not what came back (+):\n%s", diff)
		}
	}
}

func TestEveryFieldOfTheAPISurvivesTheModel(t *testing.T) {
	var v vnet.VNet
	fill(t, rand.New(rand.NewPCG(1, 1)), reflect.ValueOf(&v).Elem())
	p := ToProto(&v)
	for _, m := range []proto.Message{p, p.Routing, p.Routing.Intervals, p.Addressing, p.Links[0].Routing, p.Nodes[0], p.Nodes[0].Files[0], p.Nodes[0].Position,
		p.Links[0], p.Links[0].Endpoints[0], p.Links[0].Endpoints[0].Tx} {
		fields := m.ProtoReflect().Descriptor().Fields()
		for i := range fields.Len() {
			if !m.ProtoReflect().Has(fields.Get(i)) {
				t.Errorf("ToProto leaves %s empty", fields.Get(i).FullName())
			}
		}
	}
}

func TestEmptyNetworksSurvive(t *testing.T) {
	for _, v := range []*vnet.VNet{{}, {Nodes: []vnet.Node{{}}, Links: []vnet.Link{{Endpoints: []vnet.Interface{{}}}}}} {
		back, err := FromProto(ToProto(v))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(v, back, byValue...); diff != "" {
			t.Errorf("(-out +back):\n%s", diff)
		}
	}
	// A client may leave out any message, and a list may hold null ones.
	if _, err := FromProto(&trellisv1.VNet{Nodes: []*trellisv1.Node{nil}, Links: []*trellisv1.Link{nil, {Endpoints: []*trellisv1.Interface{nil}}}}); err != nil {
		t.Error(err)
	}
}

func TestBadValuesAreNamedByPath(t *testing.T) {
	_, err := FromProto(&trellisv1.VNet{
		Addressing: &trellisv1.Addressing{Ipv4: "10.0.0.0", Ipv6: "fd00::/200"},
		Nodes:      []*trellisv1.Node{{}, {Loopbacks: []string{"10.0.0.1", "x"}, RouterId: "1.2.3"}},
		Links: []*trellisv1.Link{{Endpoints: []*trellisv1.Interface{
			{Mac: "02:00", Addrs: []string{"10.0.0.1"}}, {Addrs: []string{""}}}}},
	})
	var errs vnet.Errors
	if !errors.As(err, &errs) {
		t.Fatalf("got %v", err)
	}
	var paths []string
	for _, e := range errs {
		paths = append(paths, e.Path)
		if e.What == "" || e.Remedy == "" {
			t.Errorf("%s has no text: %+v", e.Path, e)
		}
	}
	want := []string{"addressing.ipv4", "addressing.ipv6", "nodes[1].loopbacks[1]", "nodes[1].routerID",
		"links[0].endpoints[0].mac", "links[0].endpoints[0].addrs[0]", "links[0].endpoints[1].addrs[0]"}
	if diff := cmp.Diff(want, paths); diff != "" {
		t.Error(diff)
	}
	if _, err := FromProto(nil); err == nil {
		t.Error("no network at all is accepted")
	}
}
