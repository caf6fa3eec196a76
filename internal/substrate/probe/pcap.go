package probe

import (
	"encoding/binary"
	"time"
)

// The pcap file format, version 2.4, in the machine's byte order, as
// draft-ietf-opsawg-pcap describes it.
const (
	pcapNanoseconds = 0xa1b23c4d
	pcapEthernet    = 1 // LINKTYPE_ETHERNET
	pcapFileHeader  = 24
	pcapFrameHeader = 16
)

// appendPcapHeader appends the file's header.
func appendPcapHeader(b []byte, snaplen uint32) []byte {
	e := binary.NativeEndian
	b = e.AppendUint32(b, pcapNanoseconds)
	b = e.AppendUint16(b, 2)
	b = e.AppendUint16(b, 4)
	b = e.AppendUint32(b, 0) // time zone: UTC
	b = e.AppendUint32(b, 0) // accuracy: not said
	b = e.AppendUint32(b, snaplen)
	return e.AppendUint32(b, pcapEthernet)
}

// appendFrameHeader appends a frame's header; kept of its length bytes follow.
func appendFrameHeader(b []byte, at time.Time, kept, length int) []byte {
	e := binary.NativeEndian
	b = e.AppendUint32(b, uint32(at.Unix()))
	b = e.AppendUint32(b, uint32(at.Nanosecond()))
	b = e.AppendUint32(b, uint32(kept))
	return e.AppendUint32(b, uint32(length))
}
