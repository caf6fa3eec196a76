package deploy

import (
	"math"

	"trellis/internal/bench"
)

// gauge reads what the machine and the service use. Where the service is not a
// process of this machine, or its process is not known, it reads NaN.
type gauge struct {
	local bool // the service runs on this machine
	pid   int  // of the service
}

// reading is the state of the meters at one moment.
type reading struct {
	machineCPU, serviceCPU float64 // seconds
	available, rss         float64 // bytes
}

func (g gauge) read() (reading, error) {
	nan := math.NaN()
	r := reading{nan, nan, nan, nan}
	if !g.local {
		return r, nil
	}
	var err error
	if r.machineCPU, err = bench.MachineCPU(); err != nil {
		return r, err
	}
	available, err := bench.AvailableMemory()
	if err != nil {
		return r, err
	}
	if r.serviceCPU, err = bench.ProcessCPU(g.pid); err != nil {
		return r, err
	}
	rss, err := bench.ProcessRSS(g.pid)
	if err != nil {
		return r, err
	}
	r.available, r.rss = float64(available), float64(rss)
	return r, nil
}
