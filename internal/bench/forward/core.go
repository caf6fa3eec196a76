package forward

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// lastCore gives the last core that this process may use: the first ones serve
// more interrupts.
func lastCore() (int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return 0, fmt.Errorf("read which cores there are: %w", err)
	}
	for i := len(set)*64 - 1; i >= 0; i-- {
		if set.IsSet(i) {
			return i, nil
		}
	}
	return 0, errors.New("this process may use no core")
}

// pinThread keeps the calling thread on a core. The thread has to end with its
// goroutine.
func pinThread(core int) error {
	var set unix.CPUSet
	set.Set(core)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("keep the generator on core %d: %w", core, err)
	}
	return nil
}
