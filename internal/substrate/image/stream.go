package image

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"hash"
	"io"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// stream is an archive as it is unpacked: counted, so that none unpacks for ever,
// and summed where sum is set.
type stream struct {
	r   io.Reader
	w   *work // nil: only looked through
	ctx context.Context
	sum hash.Hash
}

func (s *stream) Read(b []byte) (int, error) {
	if s.ctx.Err() != nil {
		return 0, context.Cause(s.ctx)
	}
	n, err := s.r.Read(b)
	if s.sum != nil {
		s.sum.Write(b[:n])
	}
	if e := s.w.stream(n); e != nil {
		return n, e
	}
	return n, err
}

// maxWindow bounds the memory that unpacking takes, in bytes.
const maxWindow = 256 << 20

// decompress knows by its first bytes how a stream is compressed. When the result
// is at its end, so is r.
func decompress(r io.Reader) (io.ReadCloser, error) {
	b := bufio.NewReaderSize(r, 256<<10)
	// A shorter file has no magic number, and fails later as no archive.
	head, err := b.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}): // RFC 1952
		z, err := gzip.NewReader(b)
		if err != nil {
			return nil, err
		}
		return toEnd{z, b, func() error { return nil }}, nil
	case bytes.Equal(head, []byte{0x28, 0xb5, 0x2f, 0xfd}): // RFC 8878
		z, err := zstd.NewReader(b, zstd.WithDecoderMaxMemory(maxWindow), zstd.WithDecoderConcurrency(1))
		if err != nil {
			return nil, err
		}
		return toEnd{z, b, func() error { z.Close(); return nil }}, nil
	}
	return io.NopCloser(b), nil
}

// toEnd reads what a decompressor leaves, so that the blob's digest is looked at.
type toEnd struct {
	io.Reader
	rest  io.Reader
	close func() error
}

func (t toEnd) Read(b []byte) (int, error) {
	n, err := t.Reader.Read(b)
	if errors.Is(err, io.EOF) {
		if _, e := io.Copy(io.Discard, t.rest); e != nil {
			return n, e
		}
	}
	return n, err
}

func (t toEnd) Close() error { return t.close() }

// readAhead opens and reads r in a goroutine of its own, some pieces ahead, so that
// unpacking and writing go side by side.
func readAhead(open func() (io.ReadCloser, error)) io.ReadCloser {
	a := &ahead{full: make(chan piece, 4), free: make(chan []byte, 6), stop: make(chan struct{})}
	for range cap(a.free) {
		a.free <- make([]byte, 256<<10)
	}
	a.idle.Go(func() {
		defer close(a.full)
		r, err := open()
		if err != nil {
			a.send(piece{err: err})
			return
		}
		defer r.Close()
		for {
			var b []byte
			select {
			case b = <-a.free:
			case <-a.stop:
				return
			}
			n := 0
			for n < len(b) && err == nil {
				var m int
				m, err = r.Read(b[n:])
				n += m
			}
			if !a.send(piece{b, n, err}) || err != nil {
				return
			}
		}
	})
	return a
}

type piece struct {
	b   []byte
	n   int
	err error // after the bytes
}

type ahead struct {
	full chan piece
	free chan []byte
	stop chan struct{}
	once sync.Once
	idle sync.WaitGroup
	now  piece
	at   int
}

func (a *ahead) send(p piece) bool {
	select {
	case a.full <- p:
		return true
	case <-a.stop:
		return false
	}
}

func (a *ahead) Read(b []byte) (int, error) {
	for a.at == a.now.n {
		if a.now.err != nil {
			return 0, a.now.err
		}
		if a.now.b != nil {
			a.free <- a.now.b
		}
		a.now, a.at = <-a.full, 0
	}
	n := copy(b, a.now.b[a.at:a.now.n])
	a.at += n
	return n, nil
}

// Close ends the goroutine.
func (a *ahead) Close() error {
	a.once.Do(func() { close(a.stop) })
	a.idle.Wait()
	return nil
}
