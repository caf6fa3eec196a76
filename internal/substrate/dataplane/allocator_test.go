package dataplane

import "testing"

// TestNumbersRest gives numbers out and back, and gets none again that a program may still
// have.
func TestNumbersRest(t *testing.T) {
	quiet := 0
	p := newAllocator(4, func() error { quiet++; return nil })
	p.reserve(2)
	var had []uint32
	for range 2 {
		n, err := p.allocate()
		if err != nil {
			t.Fatal(err)
		}
		had = append(had, n)
	}
	if had[0] != 1 || had[1] != 3 || quiet != 0 {
		t.Fatalf("%v were given out, with %d waits", had, quiet)
	}
	if n, err := p.allocate(); err == nil {
		t.Fatalf("%d was given out twice", n)
	}
	p.free(3)
	p.free(0)
	if n, err := p.allocate(); err != nil || n != 3 || quiet != 1 {
		t.Fatalf("%d was given out again, with %d waits: %v", n, quiet, err)
	}
}
