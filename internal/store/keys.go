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
)

func vnetKey(name string) string         { return vnetPrefix + name }
func idsKey(base uint32) string          { return fmt.Sprintf("%s%08x", idsPrefix, base) }
func planKeys(host string) string        { return planPrefix + host + "/" }
func planKey(host, name string) string   { return planKeys(host) + name }
func statusKeys(name string) string      { return statusPrefix + name + "/" }
func statusKey(name, host string) string { return statusKeys(name) + host }

// splitStatusKey undoes statusKey. VNet names hold no slash.
func splitStatusKey(key string) (name, host string) {
	name, host, _ = strings.Cut(strings.TrimPrefix(key, statusPrefix), "/")
	return name, host
}
