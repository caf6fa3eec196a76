package shaper

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"trellis/internal/substrate/nstest"
	"trellis/internal/substrate/rtnl"
	"trellis/internal/vnet"
)

// roundTrip encodes a shape as the kernel is asked for it, and reads it as the
// kernel shows it: the same attributes, in the same message.
func roundTrip(t *testing.T, s vnet.Shape) vnet.Shape {
	t.Helper()
	var b rtnl.Batch
	request(&b, 7, 1500, s)
	const headers = unix.SizeofNlMsghdr + 20 // and struct tcmsg
	q, ok := parse(b.Message(0)[headers:])
	if !ok {
		t.Fatalf("%+v cannot be read back", s)
	}
	return q.Shape
}

func TestShapesReadAsWritten(t *testing.T) {
	for _, s := range []vnet.Shape{
		{Rate: 8}, {Rate: 64_001}, {Rate: 1e9}, {Rate: 400e9}, {Delay: 12 * time.Millisecond}, {Loss: 0.001}, {Loss: 1},
		{Rate: 10e6, Delay: time.Millisecond, Jitter: 300 * time.Microsecond, Loss: 1e-6}, {Rate: 100e9, Delay: 10 * time.Second},
	} {
		if got := roundTrip(t, s); !Same(got, s) {
			t.Errorf("%+v reads as %+v", s, got)
		}
	}
	if Same(vnet.Shape{Rate: 8}, vnet.Shape{Rate: 16}) || Same(vnet.Shape{Delay: 1}, vnet.Shape{}) {
		t.Error("different shapes are the same")
	}
}

func TestSetIsReadBack(t *testing.T) {
	nstest.Root(t)
	nstest.Sh(t, "ip link add dev x index 2 type ifb; ip link set x up")
	for _, s := range []vnet.Shape{{Rate: 1e6}, {Rate: 40e9}, {Rate: 1e6}, {}} {
		for range 2 {
			if err := Set("x", s); err != nil {
				t.Fatal(err)
			}
		}
		all, err := Read()
		if err != nil {
			t.Fatal(err)
		}
		var got vnet.Shape
		for _, q := range all {
			got = q.Shape
		}
		index := 2 // after lo
		one, err := ReadOf(index, index+1000)
		if err != nil || one[index].Shape != got || !got.IsZero() != (len(one) == 1) {
			t.Errorf("of all devices %v, of the one %v, %v", all, one, err)
		}
		if !Same(got, s) {
			t.Errorf("set %+v, read %+v of %d", s, got, len(all))
		}
	}
	for what, s := range map[string]vnet.Shape{"a loss of 2": {Loss: 2}, "a delay before": {Delay: -1}, "1 bit/s": {Rate: 1}} {
		if err := Set("x", s); err == nil {
			t.Errorf("%s was accepted", what)
		}
	}
	if err := Set("nosuchdevice", vnet.Shape{Rate: 1e6}); !errors.Is(err, unix.ENODEV) {
		t.Errorf("shaping nothing: %v", err)
	}
}

// TestLargestFramesPass at a low rate, whatever the MTU.
func TestLargestFramesPass(t *testing.T) {
	nstest.Root(t)
	n := nstest.NewNode(t)
	const mtu = 65535
	nstest.Sh(t, fmt.Sprintf("ip link add x mtu %[1]d type veth peer name y mtu %[1]d netns %[2]d; ip addr add 10.0.0.1/24 dev x; ip link set x up", mtu, n.Pid))
	n.Must(t, "ip addr add 10.0.0.2/24 dev y; ip link set y up")
	if err := Set("x", vnet.Shape{Rate: 8e6}); err != nil { // such a frame takes 66 ms
		t.Fatal(err)
	}
	for _, size := range []int{56, mtu - 28} {
		nstest.Sh(t, fmt.Sprintf("ping -c 2 -W 5 -i 0.01 -s %d -M do 10.0.0.2", size))
	}
}

// TestNetem sets what needs netem, where the kernel has it; elsewhere it is
// refused in words, with nothing changed.
func TestNetem(t *testing.T) {
	nstest.Root(t)
	nstest.Sh(t, "ip link add dev x index 2 type ifb; ip link set x up")
	netem, err := Supported()
	if err != nil {
		t.Fatal(err)
	}
	s := vnet.Shape{Rate: 10e6, Delay: 12 * time.Millisecond, Jitter: time.Millisecond, Loss: 0.01}
	err = SetAll(map[string]vnet.Shape{"x": s, "lo": {Rate: 1e6}})
	all, readErr := Read()
	if readErr != nil {
		t.Fatal(readErr)
	}
	if !netem {
		if !errors.Is(err, ErrNoNetem) || len(all) != 0 {
			t.Errorf("without netem: %v, and %v", err, all)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, q := range all {
		found = found || Same(q.Shape, s)
	}
	if !found {
		t.Errorf("set %+v, read %s", s, fmt.Sprint(all))
	}
}
