package bench

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// BusyPackets is how many packets a second make an interface one that carries
// real traffic: below, it is some administrator's session.
const BusyPackets = 5000

// BusyInterface looks for a while which interface of the machine carries the most
// packets, and gives its name and packets a second. The loopback interface does
// not count.
func BusyInterface(wait time.Duration) (name string, packets float64, err error) {
	before, err := readPackets()
	if err != nil {
		return "", 0, err
	}
	start := time.Now()
	time.Sleep(wait)
	after, err := readPackets()
	if err != nil {
		return "", 0, err
	}
	seconds := time.Since(start).Seconds()
	for device, n := range after {
		if was, ok := before[device]; ok && n >= was {
			if rate := float64(n-was) / seconds; rate > packets || name == "" {
				name, packets = device, rate
			}
		}
	}
	return name, packets, nil
}

// CheckIdle refuses to measure beside real traffic, which shares the cores with
// what is measured and would suffer from it.
func CheckIdle() error {
	name, packets, err := BusyInterface(200 * time.Millisecond)
	if err != nil {
		return err
	}
	return judgeTraffic(name, packets)
}

func judgeTraffic(name string, packets float64) error {
	if packets > BusyPackets {
		return fmt.Errorf("%s carries %.0f packets a second: a measurement would be disturbed by them, and take the processor from them; measure when it carries less than %d, or --force it", name, packets, BusyPackets)
	}
	return nil
}

func readPackets() (map[string]uint64, error) {
	text, err := os.ReadFile("/proc/self/net/dev")
	if err != nil {
		return nil, fmt.Errorf("read what the interfaces carry: %w", err)
	}
	return parseDev(string(text))
}

// parseDev reads /proc/net/dev: packets of each interface, both ways.
func parseDev(text string) (map[string]uint64, error) {
	all := map[string]uint64{}
	for line := range strings.Lines(text) {
		device, counters, ok := strings.Cut(line, ":")
		if device = strings.TrimSpace(device); !ok || device == "lo" {
			continue // a heading
		}
		f := strings.Fields(counters)
		const received, sent = 1, 9
		if len(f) <= sent {
			return nil, fmt.Errorf("read what the interfaces carry: %q", line)
		}
		in, err1 := strconv.ParseUint(f[received], 10, 64)
		out, err2 := strconv.ParseUint(f[sent], 10, 64)
		if err1 != nil || err2 != nil {
			return nil, fmt.Errorf("read what the interfaces carry: %q", line)
		}
		all[device] = in + out
	}
	return all, nil
}
