package store

import (
	"fmt"
	"strings"
)

const (
	root         = "/trellis/v1/"
	vnetPrefix   = root + "vnet/"
	idsPrefix    = root + "ids/"
	planPrefix   = root + "plan/"
	statusPrefix = root + "status/"
	hostPrefix   = root + "host/"
	nextKeyKey   = root + "keys/next"
	protocolKey  = root + "protocol"
	identityKey  = root + "identity"
	fullKey      = root + "full"
)

func vnetKey(name string) string         { return vnetPrefix + name }
func idsKey(base uint32) string          { return fmt.Sprintf("%s%08x", idsPrefix, base) }
func planKeys(host string) string        { return planPrefix + host + "/" }
func planKey(host, name string) string   { return planKeys(host) + name }
func statusKeys(name string) string      { return statusPrefix + name + "/" }
func statusKey(name, host string) string { return statusKeys(name) + host }
func hostKeys(host string) string        { return hostPrefix + host + "/" }
func hostKey(host, part string) string   { return hostKeys(host) + part }

// splitStatusKey undoes statusKey. VNet names hold no slash.
func splitStatusKey(key string) (name, host string) {
	name, host, _ = strings.Cut(strings.TrimPrefix(key, statusPrefix), "/")
	return name, host
}

// splitHostKey undoes hostKey. Host names hold no slash.
func splitHostKey(key string) (host, part string) {
	host, part, _ = strings.Cut(strings.TrimPrefix(key, hostPrefix), "/")
	return host, part
}
