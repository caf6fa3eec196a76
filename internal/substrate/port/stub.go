package port

import "errors"

// HelperNames gives the names of the helper pair of a port: shaped is the end
// whose qdisc shapes what the port sends into its LAN and which is joined with
// the port; member is the end that is enslaved to the bridge in its place.
func HelperNames(device string) (shaped, member string) { return "ts" + device, "tm" + device }

// Create makes the interfaces, ports down. Names taken in the root context are refused before anything is made.
func Create(specs []Spec) error { return errors.ErrUnsupported }

// CreateHelpers makes the helper pairs, both ends down.
func CreateHelpers(helpers []Helper) error { return errors.ErrUnsupported }

// List gives every device of the instance in the calling thread's network namespace.
func List(instance string) ([]State, error) { return nil, errors.ErrUnsupported }

// SetUp takes devices up (true) or down (false).
func SetUp(devices map[string]bool) error { return errors.ErrUnsupported }

// SetMTU sets MTUs of ports and helpers.
func SetMTU(devices map[string]int) error { return errors.ErrUnsupported }

// Delete removes devices, whatever their number, in one go. Devices that do not exist are no error.
func Delete(devices ...string) error { return errors.ErrUnsupported }

// DeleteGroup removes every device of a group.
func DeleteGroup(group uint32) error { return errors.ErrUnsupported }
