package vnet

import "strconv"

// KeepInterfaceNames gives interfaces of links that are in old too, and that the
// user did not name in either, the names that they have there; the rest of the
// unnamed get the first numbers that are free. So a link that is taken out of a
// running network does not rename, and with it make anew, the interfaces that
// come after it in the file. Both networks are complete.
func (v *VNet) KeepInterfaceNames(old *VNet) {
	type end struct{ link, node string }
	was := map[end][]string{} // of the ends that a node has on a LAN, one after the other
	for i := range old.Links {
		for _, e := range old.Links[i].Endpoints {
			if e.Auto {
				k := end{old.Links[i].Name, e.Node}
				was[k] = append(was[k], e.Name)
			}
		}
	}
	type name struct{ node, name string }
	taken := map[name]bool{}
	for i := range v.Links {
		for _, e := range v.Links[i].Endpoints {
			if !e.Auto {
				taken[name{e.Node, e.Name}] = true
			}
		}
	}
	var rest []*Interface
	for i := range v.Links {
		for j := range v.Links[i].Endpoints {
			e := &v.Links[i].Endpoints[j]
			if !e.Auto {
				continue
			}
			k := end{v.Links[i].Name, e.Node}
			if len(was[k]) == 0 {
				rest = append(rest, e)
				continue
			}
			kept := was[k][0]
			was[k] = was[k][1:]
			if taken[name{e.Node, kept}] {
				rest = append(rest, e)
				continue
			}
			taken[name{e.Node, kept}] = true
			v.rename(e, kept)
		}
	}
	for _, e := range rest {
		for n := 1; ; n++ {
			if k := (name{e.Node, "eth" + strconv.Itoa(n)}); !taken[k] {
				taken[k] = true
				v.rename(e, k.name)
				break
			}
		}
	}
}

// rename gives an interface another name, and the MAC address that goes with
// it where the old one went with the old name.
func (v *VNet) rename(e *Interface, to string) {
	if e.MAC == v.drawMAC(0, e.Node, e.Name) {
		e.MAC = v.drawMAC(0, e.Node, to)
	}
	e.Name = to
}
