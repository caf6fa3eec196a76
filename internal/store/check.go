package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"trellis/internal/plan"
)

// Check says what is wrong with the store that the copy is one of, a sentence each;
// nothing for a store that is as it should be.
func (c *Copy) Check() (faults []string) {
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	ranges := map[uint32]string{}
	keys := map[uint32]string{} // spans by their EGRE keys
	for _, name := range c.VNets() {
		rec := &VNetRecord{}
		if err := c.decode(vnetKey(name), rec); err != nil {
			fault("VNet %s: its record cannot be read: %v", name, err)
			continue
		}
		if rec.Spec == nil || rec.Name() != name {
			fault("VNet %s: its record has another's description, or none", name)
			continue
		}
		var sum Summary
		if err := c.decode(summaryKey(name), &sum); err != nil && c.Protocol >= 2 {
			fault("VNet %s: its summary cannot be read: %v", name, err)
		} else if err == nil && sum.Generation != rec.Generation {
			fault("VNet %s: its summary is of generation %d, and its record of %d", name, sum.Generation, rec.Generation)
		}
		if rec.IDBase != 0 {
			if other, taken := ranges[rec.IDBase]; taken {
				fault("VNet %s has the user ids of %s, from %d", name, other, rec.IDBase)
			}
			ranges[rec.IDBase] = name
			if owner := string(c.values[idsKey(rec.IDBase)]); owner != name {
				fault("VNet %s: its user ids, from %d, are noted as those of %q", name, rec.IDBase, owner)
			}
		}
		for span, key := range rec.Keys {
			if other, taken := keys[key]; taken {
				fault("VNet %s: span %s has the EGRE key %d of %s", name, span, key, other)
			}
			keys[key] = name + " " + span
		}
		for _, host := range rec.Hosts {
			p := &plan.Plan{}
			if err := c.decode(planKey(host, name), p); err != nil {
				fault("VNet %s: its plan for %s cannot be read: %v", name, host, err)
			} else if p.VNet != name {
				fault("VNet %s: its plan for %s is that of %q", name, host, p.VNet)
			}
		}
	}
	for _, key := range c.keys() {
		switch rest, isPlan := strings.CutPrefix(key, planPrefix); {
		case isPlan:
			if host, name, _ := strings.Cut(rest, "/"); c.values[vnetKey(name)] == nil {
				fault("there is a plan of VNet %s for %s, and no such VNet", name, host)
			}
		case strings.HasPrefix(key, idsPrefix):
			if name := string(c.values[key]); c.values[vnetKey(name)] == nil {
				fault("user ids are noted as those of VNet %q, and there is no such VNet", name)
			}
		case strings.HasPrefix(key, hostPrefix):
			if err := c.decode(key, &Host{}); err != nil {
				host, _ := splitHostKey(key)
				fault("host %s: its record cannot be read: %v", host, err)
			}
		}
	}
	slices.Sort(faults)
	return faults
}

// decode reads a value of the copy, chunks and all.
func (c *Copy) decode(key string, v any) error {
	value := c.values[key]
	if value == nil {
		return errors.New("it is not there")
	}
	if len(value) > 0 && value[0] == chunked {
		var l chunkList
		if err := json.Unmarshal(value[1:], &l); err != nil {
			return err
		}
		value = nil
		for i := range l.Count {
			value = append(value, c.values[l.key(i)]...)
		}
		if len(value) != l.Size {
			return fmt.Errorf("%d of its %d bytes are there", len(value), l.Size)
		}
	}
	return decode(value, v)
}
