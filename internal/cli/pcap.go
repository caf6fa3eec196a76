package cli

import (
	"encoding/binary"
	"fmt"
)

// Sizes in the pcap file format (draft-ietf-opsawg-pcap, sections 4 and 5).
const (
	pcapFileHeader   = 24
	pcapRecordHeader = 16
	// pcapMaxRecord bounds a record; the kernel's largest frame with offloads
	// (BIG TCP) is far below it.
	pcapMaxRecord = 16 << 20
)

// pcapFrames cuts a pcap stream at the ends of its records, so that a capture
// that is interrupted ends in a complete frame, and counts them.
type pcapFrames struct {
	order   binary.ByteOrder // known after the file header
	pending []byte
	count   uint64
}

// push adds bytes of the stream and returns those up to the end of the last complete record.
// They are valid until the next call.
func (p *pcapFrames) push(data []byte) ([]byte, error) {
	p.pending = append(p.pending, data...)
	end := 0
	if p.order == nil {
		if len(p.pending) < pcapFileHeader {
			return nil, nil
		}
		switch magic := binary.LittleEndian.Uint32(p.pending); magic {
		case 0xa1b2c3d4, 0xa1b23c4d: // microseconds, nanoseconds
			p.order = binary.LittleEndian
		case 0xd4c3b2a1, 0x4d3cb2a1:
			p.order = binary.BigEndian
		default:
			return nil, fmt.Errorf("the service sent no pcap stream (magic number %#08x); `trellis version` shows whether it is of this version", magic)
		}
		end = pcapFileHeader
	}
	for len(p.pending)-end >= pcapRecordHeader {
		size := int(p.order.Uint32(p.pending[end+8:]))
		if size > pcapMaxRecord {
			return nil, fmt.Errorf("the service sent a broken pcap stream: a frame of %d bytes", size)
		}
		if len(p.pending)-end < pcapRecordHeader+size {
			break
		}
		end += pcapRecordHeader + size
		p.count++
	}
	complete := p.pending[:end:end]
	p.pending = append([]byte(nil), p.pending[end:]...)
	return complete, nil
}
