package vnet

import (
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	maxInterfaceName = 15 // IFNAMSIZ-1
	maxLinkName      = 128
	maxNodeName      = 63 // of a DNS label (RFC 1035, section 2.3.4)
	maxVNetName      = 32
)

var (
	vnetName   = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,31}$`)
	nodeName   = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	linkName   = regexp.MustCompile(`^[a-zA-Z0-9._:-]{1,128}$`)
	envName    = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]{0,127}$`)
	sysctlName = regexp.MustCompile(`^net(\.[a-zA-Z0-9_/:@-]{1,64}){1,8}$`)
)

// RelativeImage reports whether the reference of an image is a path that starts from
// some directory: in a description from its own, and nowhere for a service.
func RelativeImage(ref string) bool { return strings.HasPrefix(ref, ".") }

// checkInterfaceName gives what is wrong with a name, or "". The kernel's rule
// is dev_valid_name() of net/core/dev.c, which also excludes "." and "..";
// Trellis keeps to printable ASCII, and to names that mean nothing else:
// net.ipv4.conf has the entries "all" and "default".
func checkInterfaceName(s string) string {
	switch {
	case s == "":
		return "is empty"
	case len(s) > maxInterfaceName:
		return "is longer than 15 bytes"
	case s == "lo" || s == "all" || s == "default" || s == "." || s == "..":
		return "is reserved"
	case strings.ContainsAny(s, "/:%"):
		return "contains '/', ':' or '%'"
	}
	for i := range len(s) {
		if s[i] <= ' ' || s[i] >= 0x7f {
			return "contains whitespace or a character that is not ASCII"
		}
	}
	return ""
}

// NodeLabel makes a valid node name from any text, or "" where nothing of it can
// be kept: lower case, runs of anything but letters and digits become one hyphen.
// The text should be decomposed beforehand, so that "é" keeps its "e".
func NodeLabel(s string) string { return label(s, maxNodeName) }

// VNetLabel makes a valid VNet name from any text in the same way.
func VNetLabel(s string) string { return label(s, maxVNetName) }

func label(s string, most int) string {
	var b strings.Builder
	gap := false
	for _, r := range strings.ToLower(s) {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			if gap && b.Len() > 0 {
				b.WriteByte('-')
			}
			gap = false
			b.WriteRune(r)
		} else {
			gap = true
		}
		if b.Len() >= most {
			break
		}
	}
	out := b.String()
	if len(out) > most {
		out = out[:most]
	}
	return strings.TrimRight(out, "-")
}

// ValidDisplay reports whether a text can be the name of a node for people: one
// line, printable, without white space at its ends.
func ValidDisplay(s string) bool {
	if s == "" || len(s) > MaxDisplay || !utf8.ValidString(s) || strings.TrimSpace(s) != s {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}

// ValidNode reports whether a text can be the name of a node.
func ValidNode(s string) bool { return nodeName.MatchString(s) }

// DisplayName is how people write the node's name.
func (n *Node) DisplayName() string {
	if n.Display != "" {
		return n.Display
	}
	return n.Name
}
