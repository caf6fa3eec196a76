package metrics

import (
	"context"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"trellis/internal/store"
)

var (
	hostUp     = desc("host_up", "Whether the substrate node's agent has answered within the last seconds.", "host")
	hostSeen   = desc("host_last_seen_timestamp_seconds", "When the substrate node's agent was last known to live.", "host")
	hostMemory = desc("host_memory_bytes", "Memory of the substrate node that is for nodes.", "host")
	hostCPU    = desc("host_cpu_cores", "Cores of the substrate node that are for nodes.", "host")
	hostMTU    = desc("host_mtu_bytes", "Least MTU of the substrate node's uplinks.", "host")

	vnetNodes     = desc("vnet_nodes", "Nodes of the network.", "vnet")
	vnetRunning   = desc("vnet_nodes_running", "Nodes of the network that run.", "vnet")
	vnetLinks     = desc("vnet_links", "Links of the network.", "vnet")
	vnetRouters   = desc("vnet_routers", "Nodes of the network that learn routes.", "vnet")
	vnetConverged = desc("vnet_routers_converged", "Nodes of the network that have learned all routes.", "vnet")
	vnetFailed    = desc("vnet_failed_hosts", "Substrate nodes that have given up on the network.", "vnet")
	vnetChanged   = desc("vnet_generation", "Grows with every change of the network.", "vnet")
)

// stored collects what the store knows of all substrate nodes and networks.
type stored struct {
	store Store
	log   *slog.Logger
}

// Describe implements [prometheus.Collector].
func (*stored) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		hostUp, hostSeen, hostMemory, hostCPU, hostMTU,
		vnetNodes, vnetRunning, vnetLinks, vnetRouters, vnetConverged, vnetFailed, vnetChanged,
	} {
		out <- d
	}
}

// Collect implements [prometheus.Collector].
func (s *stored) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	hosts, err := s.store.Hosts(ctx)
	if source("hosts").report(out, s.log, err) {
		for name, h := range hosts {
			gauge(out, hostUp, truth(h.Alive), name)
			gauge(out, hostSeen, float64(h.Seen.UnixMilli())/1e3, name)
			gauge(out, hostMemory, float64(h.Memory), name)
			gauge(out, hostCPU, h.CPU, name)
			if h.MTU > 0 {
				gauge(out, hostMTU, float64(h.MTU), name)
			}
		}
	}
	source("vnets").report(out, s.log, s.vnets(ctx, out))
}

// vnets reports all, or none if one cannot be read.
func (s *stored) vnets(ctx context.Context, out chan<- prometheus.Metric) error {
	summaries, err := s.store.Summaries(ctx)
	if err != nil {
		return err
	}
	statuses, err := s.store.AllStatuses(ctx)
	if err != nil {
		return err
	}
	for _, sum := range summaries {
		reportVNet(out, sum, statuses[sum.Name])
	}
	return nil
}

func reportVNet(out chan<- prometheus.Metric, sum store.Summary, statuses map[string]*store.Status) {
	var running, routers, converged, failed int
	for _, st := range statuses {
		if st.Generation != sum.Generation {
			continue // of what was
		}
		for _, n := range st.Nodes {
			if n.State == store.NodeRunning || n.State == store.NodeDegraded {
				running++
			}
		}
		routers += st.Routers
		converged += st.Converged
		if st.Phase == store.PhaseFailed {
			failed++
		}
	}
	name := sum.Name
	gauge(out, vnetNodes, float64(sum.Nodes), name)
	gauge(out, vnetRunning, float64(running), name)
	gauge(out, vnetLinks, float64(sum.Links), name)
	gauge(out, vnetRouters, float64(routers), name)
	gauge(out, vnetConverged, float64(converged), name)
	gauge(out, vnetFailed, float64(failed), name)
	gauge(out, vnetChanged, float64(sum.Generation), name)
}
