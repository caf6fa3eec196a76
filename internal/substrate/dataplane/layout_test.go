package dataplane

import (
	"testing"
	"unsafe"
)

// TestLayoutIsShared holds what is written twice, in C and in Go, together.
func TestLayoutIsShared(t *testing.T) {
	ports, err := loadPortProgs()
	if err != nil {
		t.Fatal(err)
	}
	uplinks, err := loadUplinkProgs()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		is   uint32
		want uintptr
	}{
		"ports":                    {ports.Maps["port_index"].MaxEntries, maxPorts},
		"entries of ports":         {ports.Maps["ports"].MaxEntries, maxPortEntries},
		"entries of tunnels":       {uplinks.Maps["tunnels"].MaxEntries, maxPortEntries},
		"egress entries":           {ports.Maps["egresses"].MaxEntries, maxEgresses},
		"places":                   {ports.Maps["egress_index"].MaxEntries, maxEgressIndex},
		"bytes of a place":         {ports.Maps["egress_index"].ValueSize, 8},
		"bytes of a port":          {ports.Maps["ports"].ValueSize, unsafe.Sizeof(portProgsPort{})},
		"bytes of an egress entry": {ports.Maps["egresses"].ValueSize, unsafe.Sizeof(portProgsEgress{})},
		"drops":                    {ports.Maps["drops"].ValueSize, unsafe.Sizeof(portProgsDropped{})},
		"a tunnel":                 {uplinks.Maps["tunnels"].ValueSize, unsafe.Sizeof(uplinkProgsTunnel{})},
		"an uplink":                {uplinks.Maps["uplinks"].ValueSize, unsafe.Sizeof(uplinkProgsUplink{})},
	} {
		if uintptr(c.is) != c.want {
			t.Errorf("%s: %d in C, %d in Go", name, c.is, c.want)
		}
	}
	if n := len(uplinkProgsUplink{}.Address); n != maxAddrs {
		t.Errorf("%d addresses of an uplink in C, %d in Go", n, maxAddrs)
	}
	for i, reason := range stackReasons {
		if reason == "" && i != 0 {
			t.Errorf("stack reason %d has no name", i)
		}
	}
	for i, reason := range dropReasons {
		if reason == "" {
			t.Errorf("drop reason %d has no name", i)
		}
	}
}
