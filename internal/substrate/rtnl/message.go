package rtnl

import (
	"encoding/binary"
	"iter"

	"golang.org/x/sys/unix"
)

// native is the byte order of netlink's own headers and integers.
var native = binary.NativeEndian

// align rounds up to NLMSG_ALIGNTO and NLA_ALIGNTO, both 4.
func align(n int) int { return (n + 3) &^ 3 }

// Batch is a sequence of requests, built in place in one buffer. The zero value
// is empty and ready. A message is opened by Begin, which takes its fixed
// header, and is complete when the next one begins.
type Batch struct {
	buf    []byte
	starts []int // offset of each message
}

// Reset empties the batch and keeps its memory.
func (b *Batch) Reset() { b.buf, b.starts = b.buf[:0], b.starts[:0] }

// Len gives the number of messages.
func (b *Batch) Len() int { return len(b.starts) }

// Message gives the i-th message as it stands, valid until the next change.
func (b *Batch) Message(i int) []byte { return b.buf[b.starts[i]:b.end(i)] }

// Begin opens a message of the given RTM_* type. NLM_F_REQUEST is implied.
// header is the type's fixed header (ifinfomsg, rtmsg, …) in native order.
func (b *Batch) Begin(typ uint16, flags uint16, header []byte) {
	b.starts = append(b.starts, len(b.buf))
	b.buf = native.AppendUint32(b.buf, 0) // length, set when sent
	b.buf = native.AppendUint16(b.buf, typ)
	b.buf = native.AppendUint16(b.buf, flags|unix.NLM_F_REQUEST)
	b.buf = append(b.buf, 0, 0, 0, 0, 0, 0, 0, 0) // sequence, port
	b.buf = append(b.buf, header...)
	b.pad()
}

func (b *Batch) pad() {
	for len(b.buf)%4 != 0 {
		b.buf = append(b.buf, 0)
	}
}

func (b *Batch) attr(typ uint16, size int) {
	b.buf = native.AppendUint16(b.buf, uint16(unix.SizeofNlAttr+size))
	b.buf = native.AppendUint16(b.buf, typ)
}

// Bytes appends an attribute.
func (b *Batch) Bytes(typ uint16, v []byte) {
	b.attr(typ, len(v))
	b.buf = append(b.buf, v...)
	b.pad()
}

// String appends a NUL-terminated string attribute.
func (b *Batch) String(typ uint16, v string) {
	b.attr(typ, len(v)+1)
	b.buf = append(append(b.buf, v...), 0)
	b.pad()
}

// Uint8 appends an 8-bit attribute.
func (b *Batch) Uint8(typ uint16, v uint8) { b.Bytes(typ, []byte{v}) }

// Uint16 appends a 16-bit attribute in native order.
func (b *Batch) Uint16(typ uint16, v uint16) {
	b.attr(typ, 2)
	b.buf = native.AppendUint16(b.buf, v)
	b.pad()
}

// Uint32 appends a 32-bit attribute in native order.
func (b *Batch) Uint32(typ uint16, v uint32) {
	b.attr(typ, 4)
	b.buf = native.AppendUint32(b.buf, v)
}

// Uint64 appends a 64-bit attribute in native order.
func (b *Batch) Uint64(typ uint16, v uint64) {
	b.attr(typ, 8)
	b.buf = native.AppendUint64(b.buf, v)
}

// Raw appends bytes as they are: the fixed header that some nested attributes
// begin with.
func (b *Batch) Raw(v []byte) {
	b.buf = append(b.buf, v...)
	b.pad()
}

// Nest appends an attribute that holds what fill appends.
func (b *Batch) Nest(typ uint16, fill func()) {
	start := b.Open(typ | unix.NLA_F_NESTED)
	fill()
	b.Close(start)
}

// Open begins an attribute whose content follows, up to Close. Unlike Nest it
// does not call itself a nest: some begin with a struct.
func (b *Batch) Open(typ uint16) (start int) {
	start = len(b.buf)
	b.attr(typ, 0)
	return start
}

// Close ends the attribute that Open began.
func (b *Batch) Close(start int) {
	native.PutUint16(b.buf[start:], uint16(len(b.buf)-start))
}

// Attrs iterates over the attributes of a message's or nest's body; the type
// comes without the nest and byte order flags. It stops at the first attribute
// that does not fit: what the kernel sends always does.
func Attrs(body []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(body) >= unix.SizeofNlAttr {
			size := int(native.Uint16(body))
			if size < unix.SizeofNlAttr || size > len(body) {
				return
			}
			typ := native.Uint16(body[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
			if !yield(typ, body[unix.SizeofNlAttr:size]) {
				return
			}
			body = body[min(align(size), len(body)):]
		}
	}
}

// Text reads a string attribute.
func Text(v []byte) string {
	if n := len(v); n > 0 && v[n-1] == 0 {
		v = v[:n-1]
	}
	return string(v)
}

// Uint32 reads a 32-bit attribute in native order; 0 if it is too short.
func Uint32(v []byte) uint32 {
	if len(v) < 4 {
		return 0
	}
	return native.Uint32(v)
}

// Uint64 reads a 64-bit attribute in native order; 0 if it is too short.
func Uint64(v []byte) uint64 {
	if len(v) < 8 {
		return 0
	}
	return native.Uint64(v)
}
