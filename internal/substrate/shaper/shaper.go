// Package shaper sets the rate, delay and loss of what leaves a device of the
// root context, by the device's root qdisc, which no node can reach: TBF for a
// rate alone, netem for the rest.
//
// Every function works in the network namespace of the calling thread.
package shaper

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"trellis/internal/substrate/rtnl"
	"trellis/internal/vnet"
)

// ErrNoNetem says that the kernel cannot delay or lose frames.
var ErrNoNetem = errors.New("this kernel has no netem, which delay, jitter and loss need; leave them out, load the module (modprobe sch_netem), or use a kernel with CONFIG_NET_SCH_NETEM")

// Supported reports whether this kernel has netem. It is tried out, in a network
// namespace made for that, so that a kernel with modules loads its one.
func Supported() (netem bool, err error) { return supported() }

var supported = sync.OnceValues(func() (bool, error) {
	type answer struct {
		netem bool
		err   error
	}
	answers := make(chan answer)
	go func() {
		// Never unlocked: the thread, and with it the namespace, ends with the
		// goroutine.
		runtime.LockOSThread()
		netem, err := tryNetem()
		answers <- answer{netem, err}
	}()
	a := <-answers
	if a.err != nil {
		return false, fmt.Errorf("find out whether the kernel has netem: %w", a.err)
	}
	return a.netem, nil
})

func tryNetem() (bool, error) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return false, err
	}
	c, err := rtnl.Dial()
	if err != nil {
		return false, err
	}
	defer c.Close()
	const loopback = 1 // of every namespace
	var b rtnl.Batch
	request(&b, loopback, 0, vnet.Shape{Loss: 0.5})
	failed, err := c.Execute(&b)
	switch {
	case err != nil:
		return false, err
	case len(failed) == 0:
		return true, nil
	case errors.Is(failed[0].Err, unix.ENOENT), errors.Is(failed[0].Err, unix.EOPNOTSUPP):
		return false, nil
	}
	return false, failed[0].Err
}

// Set shapes what leaves device; the zero shape leaves it unshaped. Setting the
// shape that is there keeps the frames that wait.
func Set(device string, s vnet.Shape) error { return SetAll(map[string]vnet.Shape{device: s}) }

// SetAll is Set for many devices at once. If the kernel lacks what one needs,
// the error is [ErrNoNetem] and nothing is changed.
func SetAll(shapes map[string]vnet.Shape) error {
	if len(shapes) == 0 {
		return nil
	}
	devices := make([]string, 0, len(shapes))
	for device, s := range shapes {
		if err := check(s); err != nil {
			return fmt.Errorf("shape %s: %w", device, err)
		}
		devices = append(devices, device)
	}
	slices.Sort(devices)
	c, err := rtnl.Dial()
	if err != nil {
		return err
	}
	defer c.Close()
	found, err := c.LinksNamed(devices...)
	if err != nil {
		return fmt.Errorf("shape %d devices: %w", len(devices), err)
	}
	var b rtnl.Batch
	var errs []error
	var asked []string
	for _, device := range devices {
		l, ok := found[device]
		if !ok {
			errs = append(errs, fmt.Errorf("shape %s: %w", device, unix.ENODEV))
			continue
		}
		request(&b, l.Index, l.MTU, shapes[device])
		asked = append(asked, device)
	}
	failed, err := c.Execute(&b)
	if err != nil {
		return fmt.Errorf("shape %d devices: %w", len(devices), err)
	}
	for _, f := range failed {
		device := asked[f.Index]
		if shapes[device].IsZero() && (errors.Is(f.Err, unix.ENOENT) || errors.Is(f.Err, unix.EINVAL)) {
			continue // there was no qdisc to remove
		}
		errs = append(errs, fmt.Errorf("shape %s: %w", device, f.Err))
	}
	return errors.Join(errs...)
}

func check(s vnet.Shape) error {
	switch {
	case s.Delay < 0 || s.Jitter < 0:
		return fmt.Errorf("delay %v and jitter %v must not be negative", s.Delay, s.Jitter)
	case s.Loss < 0 || s.Loss > 1:
		return fmt.Errorf("loss %v is not a probability; give 0 to 1", s.Loss)
	case s.Rate != 0 && s.Rate < 8:
		return fmt.Errorf("rate %d bit/s is less than a byte each second", s.Rate)
	}
	if !s.NeedsNetem() {
		return nil
	}
	netem, err := Supported()
	if err == nil && !netem {
		err = ErrNoNetem
	}
	return err
}

// Same reports whether the kernel would hold a and b alike: rates in bytes each
// second, times in nanoseconds, probabilities in 32 bits.
func Same(a, b vnet.Shape) bool { return quantize(a) == quantize(b) }

func quantize(s vnet.Shape) vnet.Shape {
	s.Rate = s.Rate / 8 * 8
	s.Loss = fromProbability(toProbability(s.Loss))
	return s
}
