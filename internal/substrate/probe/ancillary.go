package probe

import (
	"encoding/binary"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ancillary reads the time stamp and the VLAN tag that came beside a packet:
// the present and nil where there is none.
func ancillary(oob []byte) (at time.Time, tag []byte) {
	at = time.Now()
	for len(oob) >= unix.SizeofCmsghdr {
		h, data, rest, err := unix.ParseOneSocketControlMessage(oob)
		if err != nil {
			break
		}
		switch {
		case h.Level == unix.SOL_SOCKET && h.Type == unix.SCM_TIMESTAMPNS && len(data) >= int(unsafe.Sizeof(unix.Timespec{})):
			at = time.Unix((*unix.Timespec)(unsafe.Pointer(&data[0])).Unix())
		case h.Level == unix.SOL_PACKET && h.Type == unix.PACKET_AUXDATA && len(data) >= int(unsafe.Sizeof(unix.TpacketAuxdata{})):
			aux := (*unix.TpacketAuxdata)(unsafe.Pointer(&data[0]))
			if aux.Status&unix.TP_STATUS_VLAN_VALID == 0 {
				break
			}
			tpid := uint16(unix.ETH_P_8021Q)
			if aux.Status&unix.TP_STATUS_VLAN_TPID_VALID != 0 {
				tpid = aux.Vlan_tpid
			}
			tag = binary.BigEndian.AppendUint16(nil, tpid)
			tag = binary.BigEndian.AppendUint16(tag, aux.Vlan_tci)
		}
		oob = rest
	}
	return at, tag
}
