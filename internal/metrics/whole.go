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
	hostMemory = desc("host_memory_bytes", "Memory that nodes may be given on the substrate node.", "host")
	hostCPU    = desc("host_cpu_cores", "Cores that nodes may be given on the substrate node.", "host")
	hostMTU    = desc("host_mtu_bytes", "Least MTU of the substrate node's uplinks.", "host")

	vnetNodes     = desc("vnet_nodes", "Nodes of the network.", "vnet")
	vnetRunning   = desc("vnet_nodes_running", "Nodes of the network that run.", "vnet")
	vnetLinks     = desc("vnet_links", "Links of the network.", "vnet")
	vnetRouters   = desc("vnet_routers", "Nodes of the network that learn routes.", "vnet")
	vnetConverged = desc("vnet_routers_converged", "Nodes of the network that have learned all routes.", "vnet")
	vnetFailed    = desc("vnet_failed_hosts", "Substrate nodes that have given up on their part of the network.", "vnet")
	vnetChanged   = desc("vnet_generation", "Grows with every change of the network.", "vnet")
)

// whole collects what the store knows of all machines and networks.
type whole struct {
	store Store
	log   *slog.Logger
}

// Describe implements [prometheus.Collector].
func (*whole) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		hostUp, hostSeen, hostMemory, hostCPU, hostMTU,
		vnetNodes, vnetRunning, vnetLinks, vnetRouters, vnetConverged, vnetFailed, vnetChanged,
	} {
		out <- d
	}
}

// Collect implements [prometheus.Collector].
func (w *whole) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), readTime)
	defer cancel()
	hosts, err := w.store.Hosts(ctx)
	if source("hosts").tell(out, w.log, err) {
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
	source("vnets").tell(out, w.log, w.vnets(ctx, out))
}

// vnets tells of all, or of none if one cannot be read.
func (w *whole) vnets(ctx context.Context, out chan<- prometheus.Metric) error {
	records, err := w.store.VNets(ctx)
	if err != nil {
		return err
	}
	statuses := make([]map[string]*store.Status, len(records))
	for i, rec := range records {
		if statuses[i], err = w.store.Statuses(ctx, rec.Name()); err != nil {
			return err
		}
	}
	for i, rec := range records {
		tellVNet(out, rec, statuses[i])
	}
	return nil
}

func tellVNet(out chan<- prometheus.Metric, rec *store.VNetRecord, statuses map[string]*store.Status) {
	var running, routers, converged, failed int
	for _, st := range statuses {
		if st.Generation != rec.Generation {
			continue // of what was
		}
		for _, n := range st.Nodes {
			if n.State == store.NodeRunning {
				running++
			}
		}
		routers += st.Routers
		converged += st.Converged
		if st.Phase == store.PhaseFailed {
			failed++
		}
	}
	name := rec.Name()
	gauge(out, vnetNodes, float64(len(rec.Spec.Nodes)), name)
	gauge(out, vnetRunning, float64(running), name)
	gauge(out, vnetLinks, float64(len(rec.Spec.Links)), name)
	gauge(out, vnetRouters, float64(routers), name)
	gauge(out, vnetConverged, float64(converged), name)
	gauge(out, vnetFailed, float64(failed), name)
	gauge(out, vnetChanged, float64(rec.Generation), name)
}
