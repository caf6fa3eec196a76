package store

import (
	"fmt"
	"strings"
)

const (
	root          = "/trellis/v1/"
	vnetPrefix    = root + "vnet/"
	idsPrefix     = root + "ids/"
	summaryPrefix = root + "summary/"
	chunkPrefix   = root + "chunk/"
	planPrefix    = root + "plan/"
	statusPrefix  = root + "status/"
	hostPrefix    = root + "host/"
	nextKeyKey    = root + "keys/next"
	protocolKey   = root + "protocol"
	epochKey      = root + "epoch"
	identityKey   = root + "identity"
	fullKey       = root + "full"
)

func vnetKey(name string) string         { return vnetPrefix + name }
func summaryKey(name string) string      { return summaryPrefix + name }
func idsKey(base uint32) string          { return fmt.Sprintf("%s%08x", idsPrefix, base) }
func planKeys(host string) string        { return planPrefix + host + "/" }
func planKey(host, name string) string   { return planKeys(host) + name }
func statusKeys(name string) string      { return statusPrefix + name + "/" }
func statusKey(name, host string) string { return statusKeys(name) + host }
func hostKeys(host string) string        { return hostPrefix + host + "/" }
func hostKey(host, field string) string  { return hostKeys(host) + field }

// splitStatusKey undoes statusKey. VNet names hold no slash.
func splitStatusKey(key string) (name, host string) {
	name, host, _ = strings.Cut(strings.TrimPrefix(key, statusPrefix), "/")
	return name, host
}

// splitHostKey undoes hostKey. Host names hold no slash.
func splitHostKey(key string) (host, field string) {
	host, field, _ = strings.Cut(strings.TrimPrefix(key, hostPrefix), "/")
	return host, field
}
