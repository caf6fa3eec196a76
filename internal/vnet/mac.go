package vnet

import (
	"fmt"
	"net"
)

// MAC is a 48-bit Ethernet address; the zero value means "no address".
type MAC [6]byte

// ParseMAC reads a 48-bit address in any of the forms of [net.ParseMAC].
func ParseMAC(s string) (MAC, error) {
	hw, err := net.ParseMAC(s)
	if err != nil || len(hw) != 6 {
		return MAC{}, fmt.Errorf("%q is not a 48-bit MAC address; write it like 02:00:00:00:00:01", s)
	}
	return MAC(hw), nil
}

// IsZero reports whether there is no address.
func (m MAC) IsZero() bool { return m == MAC{} }

// String gives the colon-separated form, lower case.
func (m MAC) String() string { return net.HardwareAddr(m[:]).String() }

// MarshalText implements encoding.TextMarshaler.
func (m MAC) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (m *MAC) UnmarshalText(b []byte) error {
	v, err := ParseMAC(string(b))
	if err != nil {
		return err
	}
	*m = v
	return nil
}
