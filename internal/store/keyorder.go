package store

import (
	"crypto/aes"
	"crypto/cipher"
	crand "crypto/rand"
	"encoding/binary"
)

// Keys are given out in an order that only the installation's secret tells: who has seen
// one knows nothing of its neighbours. The order is a permutation of all 32-bit numbers, so none
// comes twice: a Feistel network over their halves, whose round function is AES, with as
// many rounds as NIST SP 800-38G has for FF1.

const (
	secretSize    = 16 // of AES-128
	feistelRounds = 10
)

// keyCounter is where the next EGRE key comes from. It starts at a random place
// and only goes forward, so that a key that was given up comes back after all
// four billion others, when no stale peer can still send it.
type keyCounter struct {
	Start uint32 `json:"start"`
	Next  uint32 `json:"next"`
	// Round is set once the counter has come past its start: from then on some
	// of the keys ahead may be in use.
	Round bool `json:"round,omitempty"`
	// Secret gives the order. From is where it began: a service of protocol 2 gave out
	// the numbers from Start up to it as they are.
	Secret []byte `json:"secret,omitempty"`
	From   uint32 `json:"from,omitempty"`
}

// begin sees to it that the counter has a secret.
func (c *keyCounter) begin() {
	if len(c.Secret) == 0 {
		c.Secret, c.From = make([]byte, secretSize), c.Next
		crand.Read(c.Secret) // never fails (crypto/rand)
	}
}

// draw takes n keys that are not in use, and never 0.
func (c *keyCounter) draw(n int, used map[uint32]bool) ([]uint32, error) {
	block, err := aes.NewCipher(c.Secret)
	if err != nil {
		return nil, err
	}
	keys := make([]uint32, 0, n)
	for len(keys) < n {
		key := c.key(c.Next, block)
		c.Next++
		c.Round = c.Round || c.Next == c.Start
		if key != 0 && !used[key] {
			keys = append(keys, key)
		}
	}
	return keys, nil
}

// mostPlain is how many keys may have been given out as they are for the others to be in an
// order: with more of them, finding the next would take too long.
const mostPlain = 15 << 28

// key gives the key of a place in the order. Those that were given out as they are keep their
// places; the others change theirs among themselves alone: a number that falls on one of the
// first is permuted again, until it does not.
func (c *keyCounter) key(n uint32, block cipher.Block) uint32 {
	plain := func(n uint32) bool { return n-c.Start < c.From-c.Start }
	if plain(n) || c.From-c.Start > mostPlain {
		return n
	}
	for n = permute(n, block); plain(n); {
		n = permute(n, block)
	}
	return n
}

// permute gives each number another, and none to two.
func permute(n uint32, block cipher.Block) uint32 {
	left, right := uint16(n>>16), uint16(n)
	var in, out [aes.BlockSize]byte
	for round := range feistelRounds {
		in[0] = byte(round)
		binary.BigEndian.PutUint16(in[1:], right)
		block.Encrypt(out[:], in[:])
		left, right = right, left^binary.BigEndian.Uint16(out[:])
	}
	return uint32(left)<<16 | uint32(right)
}
