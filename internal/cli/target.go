package cli

import "strings"

// target is what VNET, VNET/NODE or VNET/NODE:IF names; absent parts are empty.
type target struct{ vnet, node, iface string }

// parseTarget takes an argument apart. Whether the thing exists is for the
// service to say.
func parseTarget(s string) (target, error) {
	var t target
	var slash, colon bool
	t.vnet, t.node, slash = strings.Cut(s, "/")
	t.node, t.iface, colon = strings.Cut(t.node, ":")
	if t.vnet == "" || slash && t.node == "" || colon && t.iface == "" ||
		strings.ContainsAny(t.vnet, ":") || strings.ContainsAny(t.node+t.iface, "/:") {
		return target{}, usagef("%q names nothing; write VNET, VNET/NODE or VNET/NODE:INTERFACE, for instance abilene/denver:eth1", s)
	}
	return t, nil
}

// parseNode is parseTarget for exactly VNET/NODE.
func parseNode(s string) (target, error) {
	t, err := parseTarget(s)
	if err == nil && (t.node == "" || t.iface != "") {
		err = usagef("%q is not a node; write VNET/NODE, for instance abilene/denver", s)
	}
	return t, err
}

// parseInterface is parseTarget for exactly VNET/NODE:IF.
func parseInterface(s string) (target, error) {
	t, err := parseTarget(s)
	if err == nil && t.iface == "" {
		err = usagef("%q is not an interface; write VNET/NODE:INTERFACE, for instance abilene/denver:eth1", s)
	}
	return t, err
}
