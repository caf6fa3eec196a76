package store

import (
	"bytes"
	"crypto/aes"
	"slices"
	"testing"
)

// TestKeysAreInNoOrder draws keys and looks whether one tells the next.
func TestKeysAreInNoOrder(t *testing.T) {
	s := open(t, t.TempDir())
	keys, err := s.DrawKeys(t.Context(), 1000)
	if err != nil {
		t.Fatal(err)
	}
	near := 0
	for i := 1; i < len(keys); i++ {
		if d := keys[i] - keys[i-1]; d+1000 < 2000 {
			near++
		}
	}
	if near > 10 { // one is expected once in 2,000 times
		t.Errorf("%d of %d keys are next to the one before: %x …", near, len(keys), keys[:8])
	}
	slices.Sort(keys)
	if len(slices.Compact(keys)) != 1000 {
		t.Error("a key was drawn twice")
	}
}

// TestPermutation goes through a part of all numbers, and back by the inverse.
func TestPermutation(t *testing.T) {
	block, err := aes.NewCipher(bytes.Repeat([]byte{7}, secretSize))
	if err != nil {
		t.Fatal(err)
	}
	seen := make([]uint64, 1<<32/64/64) // every 64th of all pictures
	for n := range uint32(1 << 20) {
		p := permute(n, block)
		if p&63 != 0 {
			continue
		}
		if p >>= 6; seen[p>>6]&(1<<(p&63)) != 0 {
			t.Fatalf("%d has the picture of another", n)
		}
		seen[p>>6] |= 1 << (p & 63)
	}
}

// TestKeysOfAnUpgrade draws keys from a store that has given out numbers as they are: none comes
// again, wherever the counter was, and however much of all numbers it had given out.
func TestKeysOfAnUpgrade(t *testing.T) {
	for _, c := range []keyCounter{
		{Start: 100, Next: 5000},
		{Start: 1<<32 - 50, Next: 3000},         // across 0
		{Start: 7, Next: 3 << 30},               // three fourths of all
		{Start: 3 << 30, Next: 3<<30 - 5000},    // nearly all
		{Start: 77, Next: 77},                   // none
		{Start: 77, Next: 1 << 20, Round: true}, // all, and some of them again
	} {
		was := c
		c.begin()
		keys, err := c.draw(4000, nil)
		if err != nil {
			t.Fatal(err)
		}
		seen := map[uint32]bool{}
		for _, key := range keys {
			if key == 0 || seen[key] || key-was.Start < was.Next-was.Start && !was.Round {
				t.Fatalf("%+v: the key %d was given out before, or is none", was, key)
			}
			seen[key] = true
		}
		if c.From != was.Next || c.Next-was.Next < 4000 {
			t.Errorf("%+v became %+v", was, c)
		}
	}
}
