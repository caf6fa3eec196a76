// Package softirq tells how much of the CPUs' time the kernel spends on softirqs,
// and for which network namespaces. No cgroup is charged with that time: packets are
// worked on in the name of whichever process was running.
package softirq

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strconv"
)

// A Meter reads the share of each CPU's time that softirqs take.
type Meter struct {
	stat *os.File
	buf  []byte
	last []cpuTime
}

// cpuTime is what a CPU has done since the machine started, in ticks of USER_HZ.
type cpuTime struct{ softirq, all uint64 }

// NewMeter opens /proc/stat.
func NewMeter() (*Meter, error) {
	f, err := os.Open("/proc/stat")
	if err != nil {
		return nil, err
	}
	return &Meter{stat: f, buf: make([]byte, 64<<10)}, nil
}

// Close closes the file.
func (m *Meter) Close() error { return m.stat.Close() }

// Read gives the share, 0 to 1, of each CPU that is online since the last Read, or
// since the machine started. CPUs that came or went meanwhile make it start anew.
func (m *Meter) Read() ([]float64, error) {
	n, err := m.stat.ReadAt(m.buf, 0)
	if err != nil && err != io.EOF {
		return nil, err
	}
	now, err := parseStat(m.buf[:n])
	if err != nil {
		return nil, err
	}
	shares := make([]float64, len(now))
	for i, c := range now {
		if len(m.last) == len(now) {
			c.softirq -= m.last[i].softirq
			c.all -= m.last[i].all
		}
		if c.all > 0 {
			shares[i] = float64(c.softirq) / float64(c.all)
		}
	}
	m.last = now
	return shares, nil
}

// parseStat reads the lines of single CPUs of /proc/stat (proc_stat(5)): user, nice,
// system, idle, iowait, irq, softirq, steal; guests' time is within user and nice.
func parseStat(b []byte) ([]cpuTime, error) {
	var cpus []cpuTime
	for line := range bytes.Lines(b) {
		f := bytes.Fields(line)
		if len(f) == 0 || !bytes.HasPrefix(f[0], []byte("cpu")) {
			break // interrupts follow
		}
		if len(f[0]) == len("cpu") {
			continue // all together
		}
		if len(f) < 9 {
			return nil, fmt.Errorf("/proc/stat: %q has fewer than eight figures", line)
		}
		var c cpuTime
		for i, s := range f[1:9] {
			v, err := strconv.ParseUint(string(s), 10, 64)
			if err != nil {
				return nil, fmt.Errorf("/proc/stat: %w", err)
			}
			c.all += v
			if i == 6 {
				c.softirq = v
			}
		}
		cpus = append(cpus, c)
	}
	if len(cpus) == 0 {
		return nil, fmt.Errorf("/proc/stat names no CPU")
	}
	return cpus, nil
}
