package format

import (
	"encoding/base64"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"trellis/internal/vnet"
)

// WriteYAML writes a completed and valid network in the native format. What is
// written loads to the same model; what Complete would fill in the same way is
// left out. Placed files are written into the document.
func WriteYAML(w io.Writer, v *vnet.VNet) error {
	if err := v.Validate(); err != nil {
		return fmt.Errorf("write %s as YAML: %w", v.Name, err)
	}
	k := minimal(v)
	doc := newMapping()
	doc.add("name", text(v.Name))
	doc.add("routing", networkRouting(v.Routing))
	if k.addressing && v.Addressing.Mode != vnet.AddressesAuto {
		doc.add("addressing", text(string(v.Addressing.Mode)))
	} else if k.addressing {
		a := newMapping().flow()
		if p := v.Addressing.IPv4; p.IsValid() {
			a.add("ipv4", text(p.String()))
		}
		if p := v.Addressing.IPv6; p.IsValid() {
			a.add("ipv6", text(p.String()))
		}
		doc.add("addressing", a)
	}
	nodes := newMapping()
	for i := range v.Nodes {
		nodes.add(v.Nodes[i].Name, node(&v.Nodes[i], v.Routing, k.nodes[i]))
	}
	doc.add("nodes", nodes)
	if len(v.Links) > 0 {
		links := newList()
		for i := range v.Links {
			links.append(link(&v.Links[i], k.links[i]))
		}
		doc.add("links", links)
	}
	enc := yaml.NewEncoder(w)
	enc.SetIndent(2)
	if err := enc.Encode((*yaml.Node)(doc)); err != nil {
		return fmt.Errorf("write %s as YAML: %w", v.Name, err)
	}
	if err := enc.Close(); err != nil {
		return fmt.Errorf("write %s as YAML: %w", v.Name, err)
	}
	return nil
}

// element is a piece of a YAML document that is being built.
type element yaml.Node

func newMapping() *element { return &element{Kind: yaml.MappingNode, Tag: "!!map"} }

func newList(items ...*element) *element {
	l := &element{Kind: yaml.SequenceNode, Tag: "!!seq"}
	for _, item := range items {
		l.append(item)
	}
	return l
}

// flow puts a mapping or list on one line.
func (e *element) flow() *element {
	e.Style |= yaml.FlowStyle
	return e
}

func (e *element) add(key string, value *element) {
	e.Content = append(e.Content, (*yaml.Node)(text(key)), (*yaml.Node)(value))
}

func (e *element) append(item *element) { e.Content = append(e.Content, (*yaml.Node)(item)) }

// text is a string, quoted where YAML would take it for something else or
// change it.
func text(s string) *element {
	e := &element{Kind: yaml.ScalarNode, Tag: "!!str", Value: s}
	for _, r := range s {
		if r == '\n' || !unicode.IsPrint(r) {
			e.Style = yaml.DoubleQuotedStyle
		}
	}
	if s == "" || s == "<<" || s[0] == ' ' || s[len(s)-1] == ' ' {
		e.Style = yaml.DoubleQuotedStyle
	}
	return e
}

// plain is a value of another type than text.
func plain(tag, s string) *element { return &element{Kind: yaml.ScalarNode, Tag: tag, Value: s} }

func integer(n int64) *element { return plain("!!int", strconv.FormatInt(n, 10)) }

func number(f float64) *element {
	return plain("!!float", strconv.FormatFloat(f, 'g', -1, 64))
}

func texts(list []string) *element {
	out := newList()
	for _, s := range list {
		out.append(text(s))
	}
	return out
}

func textMap(m map[string]string) *element {
	out := newMapping()
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out.add(k, text(m[k]))
	}
	return out
}

func node(n *vnet.Node, network vnet.Routing, k nodeKeep) *element {
	m := newMapping()
	if n.Display != "" {
		m.add("display", text(n.Display))
	}
	if n.Kind != vnet.Router {
		m.add("kind", text(string(n.Kind)))
	}
	if n.Image != vnet.DefaultImage {
		m.add("image", text(n.Image))
	}
	if len(n.Cmd) > 0 {
		m.add("cmd", texts(n.Cmd).flow())
	}
	if n.Restart != "" {
		m.add("restart", text(string(n.Restart)))
	}
	if n.CPU != 0 {
		m.add("cpu", number(n.CPU))
	}
	if n.Memory != vnet.DefaultMemory {
		m.add("memory", text(vnet.FormatSize(n.Memory)))
	}
	if n.Pids != vnet.DefaultPids {
		m.add("pids", integer(int64(n.Pids)))
	}
	if n.Disk != vnet.DefaultDisk {
		m.add("disk", text(vnet.FormatSize(n.Disk)))
	}
	if k.routing {
		m.add("routing", nodeRouting(n, network))
	}
	if n.Addressing != vnet.AddressesAuto {
		m.add("addressing", text(string(n.Addressing)))
	}
	if k.asn {
		m.add("asn", integer(int64(n.ASN)))
	}
	if k.loopbacks {
		l := newList().flow()
		for _, a := range n.Loopbacks {
			l.append(text(a.String()))
		}
		m.add("loopbacks", l)
	}
	if len(n.Anycast) > 0 {
		l := newList().flow()
		for _, a := range n.Anycast {
			l.append(text(a.String()))
		}
		m.add("anycast", l)
	}
	if k.routerID {
		m.add("router-id", text(n.RouterID.String()))
	}
	if n.On != "" {
		m.add("on", text(n.On))
	}
	if n.FastPath != vnet.FastPathAuto {
		m.add("fastpath", text(string(n.FastPath)))
	}
	if n.Repair != vnet.RepairAlways {
		m.add("repair", text(string(n.Repair)))
	}
	if p := n.Position; p != nil {
		pos := newMapping().flow()
		pos.add("latitude", number(p.Latitude))
		pos.add("longitude", number(p.Longitude))
		m.add("position", pos)
	}
	if len(n.Env) > 0 {
		m.add("env", textMap(n.Env))
	}
	if len(n.Sysctls) > 0 {
		m.add("sysctls", textMap(n.Sysctls))
	}
	if len(n.Files) > 0 {
		files := newMapping()
		for i := range n.Files {
			files.add(n.Files[i].Path, placed(&n.Files[i]))
		}
		m.add("files", files)
	}
	if len(n.Exec) > 0 {
		m.add("exec", texts(n.Exec))
	}
	if n.ExecTimeout != 0 {
		m.add("exec-timeout", text(n.ExecTimeout.String()))
	}
	if len(m.Content) == 0 {
		m.flow()
	}
	return m
}

// placed writes a file with its content: as a block of lines where that keeps
// every byte, quoted where it is text of another shape, else in base64.
func placed(f *vnet.File) *element {
	m := newMapping()
	content := string(f.Content)
	switch {
	case !utf8.ValidString(content):
		m.add("base64", text(base64.StdEncoding.EncodeToString(f.Content)))
	case isBlock(content):
		e := text("")
		e.Value, e.Style = content, yaml.LiteralStyle
		m.add("content", e)
	default:
		e := text(content)
		e.Style = yaml.DoubleQuotedStyle
		m.add("content", e)
	}
	if f.Mode != 0o644 {
		m.add("mode", plain("!!int", fmt.Sprintf("%#o", f.Mode)))
	}
	return m
}

// isBlock reports whether a text is lines that YAML's literal style leaves alone.
func isBlock(s string) bool {
	if !strings.HasSuffix(s, "\n") || strings.HasSuffix(s, "\n\n") {
		return false
	}
	for _, line := range strings.Split(strings.TrimSuffix(s, "\n"), "\n") {
		if strings.HasSuffix(line, " ") {
			return false
		}
		for _, r := range line {
			if !unicode.IsPrint(r) {
				return false
			}
		}
	}
	return s[0] != ' ' && s[0] != '\n'
}

func link(l *vnet.Link, k linkKeep) *element {
	m := newMapping()
	if k.name {
		m.add("name", text(l.Name))
	}
	if l.Type == vnet.LAN {
		m.add("type", text(string(vnet.LAN)))
	}
	// 0 stands for an automatic MTU, which is left out.
	mtu, sameMTU := common(l, explicitMTU)
	cost, sameCost := common(l, func(e *vnet.Interface) int { return e.Cost })
	tx, sameTx := common(l, func(e *vnet.Interface) vnet.Shape { return e.Tx })
	rx, sameRx := common(l, func(e *vnet.Interface) vnet.Shape { return e.Rx })
	lan := l.Type == vnet.LAN
	// A point-to-point link says its two directions itself; a LAN does where every
	// end has the same shape, else its ends do.
	onLink := !lan || sameTx && sameRx

	ends := newList().flow()
	for i := range l.Endpoints {
		e := &l.Endpoints[i]
		long := newMapping().flow()
		if k.ends[i].mac {
			long.add("mac", text(e.MAC.String()))
		}
		if mtu := explicitMTU(e); !sameMTU && mtu != 0 {
			long.add("mtu", integer(int64(mtu)))
		}
		if k.ends[i].addrs && len(e.Addrs) > 0 {
			long.add("addresses", addresses(e.Addrs))
		}
		if !sameCost && e.Cost != 0 {
			long.add("cost", integer(int64(e.Cost)))
		}
		if !onLink {
			addShape(long, lan, e.Tx, e.Rx)
		}
		if e.Down {
			long.add("state", text("down"))
		}
		if len(long.Content) > 0 {
			full := newMapping().flow()
			full.add("node", text(e.Node))
			if k.ends[i].name {
				full.add("interface", text(e.Name))
			}
			full.Content = append(full.Content, long.Content...)
			ends.append(full)
		} else if k.ends[i].name {
			ends.append(text(e.Node + ":" + e.Name))
		} else {
			ends.append(text(e.Node))
		}
	}
	m.add("endpoints", ends)
	switch {
	case !lan && len(l.Endpoints) == 2:
		addShape(m, false, l.Endpoints[0].Tx, l.Endpoints[1].Tx)
	case onLink:
		addShape(m, true, tx, rx)
	}
	if sameMTU && mtu != 0 {
		m.add("mtu", integer(int64(mtu)))
	}
	if sameCost && cost != 0 {
		m.add("cost", integer(int64(cost)))
	}
	if l.Addressing != vnet.AddressesAuto {
		m.add("addressing", text(string(l.Addressing)))
	}
	if l.Overlap {
		m.add("overlap", plain("!!bool", "true"))
	}
	if l.Routing != (vnet.LinkRouting{}) {
		m.add("routing", linkRouting(l.Routing))
	}
	if l.Down {
		m.add("state", text("down"))
	}
	return m
}

func explicitMTU(e *vnet.Interface) int {
	if e.AutoMTU {
		return 0
	}
	return e.MTU
}

// common gives the value that all ends of a link share, if they do.
func common[T comparable](l *vnet.Link, of func(*vnet.Interface) T) (T, bool) {
	first := of(&l.Endpoints[0])
	for i := range l.Endpoints {
		if of(&l.Endpoints[i]) != first {
			return first, false
		}
	}
	return first, true
}

func addresses(list []netip.Prefix) *element {
	out := newList().flow()
	for _, p := range list {
		out.append(text(p.String()))
	}
	return out
}

// addShape writes two directions. On a LAN a single delay, jitter or loss stands
// for the way towards the node alone.
func addShape(m *element, lan bool, up, down vnet.Shape) {
	addDirections(m, "rate", up.Rate, down.Rate, up.Rate == down.Rate, vnet.FormatRate)
	single := func(same, noUp bool) bool { return same && !lan || noUp && lan }
	addDirections(m, "delay", up.Delay, down.Delay, single(up.Delay == down.Delay, up.Delay == 0), vnet.FormatDelay)
	addDirections(m, "jitter", up.Jitter, down.Jitter, single(up.Jitter == down.Jitter, up.Jitter == 0), vnet.FormatDelay)
	addDirections(m, "loss", up.Loss, down.Loss, single(up.Loss == down.Loss, up.Loss == 0), vnet.FormatLoss)
}

func addDirections[T uint64 | float64 | time.Duration](m *element, key string, up, down T, single bool, format func(T) string) {
	if up == 0 && down == 0 {
		return
	}
	if single {
		m.add(key, text(format(down)))
		return
	}
	both := newMapping().flow()
	if up != 0 {
		both.add("up", text(format(up)))
	}
	if down != 0 {
		both.add("down", text(format(down)))
	}
	m.add(key, both)
}
