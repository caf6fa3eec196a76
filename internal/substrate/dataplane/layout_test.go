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
		"ports":            {ports.Maps["ports"].MaxEntries, maxPorts},
		"ends":             {ports.Maps["ends"].MaxEntries, maxEnds},
		"places":           {ports.Maps["egress"].MaxEntries, maxEgress},
		"bytes of a place": {ports.Maps["egress"].ValueSize, 8},
		"bytes of a port":  {ports.Maps["ports"].ValueSize, unsafe.Sizeof(portProgsPort{})},
		"bytes of an end":  {ports.Maps["ends"].ValueSize, unsafe.Sizeof(portProgsEnd{})},
		"drops":            {ports.Maps["drops"].ValueSize, unsafe.Sizeof(portProgsDropped{})},
		"an arrival":       {uplinks.Maps["arrivals"].ValueSize, unsafe.Sizeof(uplinkProgsArrival{})},
		"an uplink":        {uplinks.Maps["uplinks"].ValueSize, unsafe.Sizeof(uplinkProgsUplink{})},
	} {
		if uintptr(c.is) != c.want {
			t.Errorf("%s: %d in C, %d in Go", name, c.is, c.want)
		}
	}
	if n := len(uplinkProgsUplink{}.Address); n != maxAddrs {
		t.Errorf("%d addresses of an uplink in C, %d in Go", n, maxAddrs)
	}
	for i, reason := range dropReasons {
		if reason == "" {
			t.Errorf("drop reason %d has no name", i)
		}
	}
}
