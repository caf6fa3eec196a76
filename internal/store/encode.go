package store

import (
	"bytes"
	"compress/flate"
	"encoding/json"
	"fmt"
	"io"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// The first byte of a value says how the rest is written.
const (
	plainJSON   = 'j'
	zstdJSON    = 's' // RFC 8878
	deflateJSON = 'z' // RFC 1951; of protocol 1
	// [chunked] stands for values that are elsewhere.
)

// compressAbove is the size in bytes from which compressing a value is worth
// the time.
const compressAbove = 512

// maxDecoded bounds what a value may grow to when it is read, in bytes.
const maxDecoded = 1 << 30

// The codecs are safe for several goroutines, and costly to make.
var (
	compressor = sync.OnceValues(func() (*zstd.Encoder, error) {
		return zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(2))
	})
	decompressor = sync.OnceValues(func() (*zstd.Decoder, error) {
		return zstd.NewReader(nil, zstd.WithDecoderMaxMemory(maxDecoded), zstd.WithDecoderConcurrency(2))
	})
)

// encode writes v as JSON, compressed unless it is tiny: plans repeat
// themselves a lot, and every value is written to disk twice (log and tree) and
// held in memory by the Raft log for a while.
func encode(v any) ([]byte, error) {
	plain, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode for the store: %w", err)
	}
	if len(plain) < compressAbove {
		return append([]byte{plainJSON}, plain...), nil
	}
	c, err := compressor()
	if err != nil {
		return nil, fmt.Errorf("encode for the store: %w", err)
	}
	return c.EncodeAll(plain, append(make([]byte, 0, len(plain)/4), zstdJSON)), nil
}

// decode reads what encode wrote.
func decode(value []byte, v any) error {
	if len(value) == 0 {
		return fmt.Errorf("stored value is empty")
	}
	switch value[0] {
	case plainJSON:
		return json.Unmarshal(value[1:], v)
	case zstdJSON:
		d, err := decompressor()
		if err != nil {
			return fmt.Errorf("read a stored value: %w", err)
		}
		plain, err := d.DecodeAll(value[1:], nil)
		if err != nil {
			return fmt.Errorf("stored value is damaged: %w", err)
		}
		return json.Unmarshal(plain, v)
	case deflateJSON:
		r := flate.NewReader(bytes.NewReader(value[1:]))
		plain, err := io.ReadAll(io.LimitReader(r, maxDecoded))
		if err != nil {
			return fmt.Errorf("stored value is damaged: %w", err)
		}
		return json.Unmarshal(plain, v)
	default:
		return fmt.Errorf("stored value has the unknown format %q: it was written by another version of Trellis", value[0])
	}
}
