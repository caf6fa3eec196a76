package store

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// A copy of a store is a file: the line copyMagic, then, compressed by zstd, a line of
// JSON (CopyInfo), each key and value with their lengths as uvarints, a key of no
// length, and the SHA-256 of all before. It holds what was in the store at one
// revision, but for what agents report and what is only true for the moment.
const copyMagic = "trellis store copy 1\n"

// CopyInfo says what a copy is one of.
type CopyInfo struct {
	Protocol int       `json:"protocol"`
	Identity string    `json:"identity"` // see [Store.Identity]
	Revision int64     `json:"revision"`
	Saved    time.Time `json:"saved"`
	Version  string    `json:"version"` // of the trellis that has made it
}

// Copy is a copy that was read.
type Copy struct {
	CopyInfo
	values map[string][]byte // by key
}

// VNets names the networks in the copy, sorted.
func (c *Copy) VNets() (names []string) {
	for _, key := range c.keys() {
		if name, ok := strings.CutPrefix(key, vnetPrefix); ok {
			names = append(names, name)
		}
	}
	return names
}

func (c *Copy) keys() []string { return slices.Sorted(maps.Keys(c.values)) }

// inCopies reports whether a key belongs into a copy.
func inCopies(key string) bool {
	if strings.HasPrefix(key, hostPrefix) {
		_, field := splitHostKey(key)
		return field == fieldRecord
	}
	return !strings.HasPrefix(key, statusPrefix) && key != fullKey && key != protocolKey
}

const (
	copyPage  = 64 // keys that are read at once; chunks have a MiB each
	copyTries = 5  // of a store that forgets the revision that is being copied
)

// errCompacted is the error of a copy of a revision that the store has forgotten.
var errCompacted = errors.New("the store changes too fast to be copied; try again")

// ReadAll takes a copy of what is in the store now, and goes on while others use it.
func (s *Store) ReadAll(ctx context.Context, version string) (*Copy, error) {
	for i := 1; ; i++ {
		c, err := s.readAll(ctx, version)
		if !errors.Is(err, errCompacted) || i == copyTries {
			return c, err
		}
	}
}

func (s *Store) readAll(ctx context.Context, version string) (*Copy, error) {
	identity, err := s.Identity(ctx)
	if err != nil {
		return nil, err
	}
	c := &Copy{CopyInfo{Protocol: Protocol, Identity: identity, Saved: s.now().UTC().Truncate(time.Second), Version: version}, map[string][]byte{}}
	end := clientv3.GetPrefixRangeEnd(root)
	for from := root; ; {
		bounded, cancel := s.callFor(ctx, copyPage*chunkSize)
		r, err := s.client.Get(bounded, from, clientv3.WithRange(end), clientv3.WithLimit(copyPage), clientv3.WithRev(c.Revision))
		if err != nil {
			err = s.describeError(bounded, "copy the store", err)
		}
		cancel()
		switch {
		case errors.Is(err, rpctypes.ErrCompacted):
			return nil, errCompacted
		case err != nil:
			return nil, err
		}
		if c.Revision == 0 {
			c.Revision = r.Header.Revision
		}
		for _, kv := range r.Kvs {
			if key := string(kv.Key); inCopies(key) {
				c.values[key] = kv.Value
			}
		}
		if !r.More {
			return c, nil
		}
		from = string(r.Kvs[len(r.Kvs)-1].Key) + "\x00"
	}
}

// Write writes the copy.
func (c *Copy) Write(w io.Writer) error {
	if _, err := io.WriteString(w, copyMagic); err != nil {
		return err
	}
	z, err := zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedFastest))
	if err != nil {
		return err
	}
	sum := sha256.New()
	b := bufio.NewWriter(io.MultiWriter(z, sum))
	header, err := json.Marshal(c.CopyInfo)
	if err != nil {
		return err
	}
	b.Write(append(header, '\n'))
	put := func(text []byte) {
		b.Write(binary.AppendUvarint(nil, uint64(len(text))))
		b.Write(text)
	}
	for _, key := range c.keys() {
		put([]byte(key))
		put(c.values[key])
	}
	put(nil)
	if err := b.Flush(); err != nil { // and whatever went wrong before
		return err
	}
	_, err = z.Write(sum.Sum(nil))
	return errors.Join(err, z.Close())
}

// hashed hashes what is read by bytes.
type hashed struct {
	*bufio.Reader
	sum hash.Hash
}

func (h hashed) ReadByte() (byte, error) {
	b, err := h.Reader.ReadByte()
	if err == nil {
		h.sum.Write([]byte{b})
	}
	return b, err
}

func (h hashed) text() ([]byte, error) {
	n, err := binary.ReadUvarint(h)
	if err != nil || n == 0 {
		return nil, err
	}
	if n > maxValue {
		return nil, fmt.Errorf("a value of %d MiB", n>>20)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(h.Reader, b); err != nil {
		return nil, err
	}
	h.sum.Write(b)
	return b, nil
}

// ReadCopy reads a copy, and refuses one that is damaged, cut off, or of a later
// protocol than this trellis knows.
func ReadCopy(r io.Reader) (*Copy, error) {
	magic := make([]byte, len(copyMagic))
	if _, err := io.ReadFull(r, magic); err != nil || string(magic) != copyMagic {
		return nil, errors.New("it is no copy of a store; `trellis store save FILE` makes one")
	}
	z, err := zstd.NewReader(r)
	if err != nil {
		return nil, err
	}
	defer z.Close()
	c, err := readCopy(hashed{bufio.NewReader(z), sha256.New()})
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		err = errors.New("it is cut off; take another copy")
	}
	return c, err
}

func readCopy(h hashed) (*Copy, error) {
	header, err := h.ReadBytes('\n')
	if err != nil {
		return nil, err
	}
	h.sum.Write(header)
	c := &Copy{values: map[string][]byte{}}
	if err := json.Unmarshal(header, &c.CopyInfo); err != nil {
		return nil, fmt.Errorf("its first line is damaged: %w", err)
	}
	if c.Protocol > Protocol {
		return nil, fmt.Errorf("it is of a newer trellis (%s, protocol %d; this one knows %d); use that version", c.Version, c.Protocol, Protocol)
	}
	for {
		key, err := h.text()
		if err != nil {
			return nil, err
		}
		if key == nil {
			break
		}
		if c.values[string(key)], err = h.text(); err != nil {
			return nil, err
		}
	}
	want := h.sum.Sum(nil)
	have := make([]byte, len(want))
	if _, err := io.ReadFull(h.Reader, have); err != nil {
		return nil, err
	}
	if !bytes.Equal(have, want) {
		return nil, errors.New("it is damaged: its checksum is another; take another copy")
	}
	return c, nil
}
