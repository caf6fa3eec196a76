package metrics

import (
	"context"
	"log/slog"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"trellis/internal/agentapi"
	"trellis/internal/store"
)

// The paths of a packet through a node.
const (
	fast  = "fast"
	stack = "stack"
)

var (
	portLabels = []string{"vnet", "node", "interface"}
	pathLabels = append([]string{"peer"}, portLabels...)

	tunnelLabels = []string{"vnet", "link", "peer"}

	rxPackets  = desc("port_receive_packets_total", "Packets that the node received, by the path to it.", append(portLabels, "path")...)
	rxBytes    = desc("port_receive_bytes_total", "Bytes of Ethernet frames that the node received, by the path to it.", append(portLabels, "path")...)
	txPackets  = desc("port_transmit_packets_total", "Packets that the node sent, by the path from it.", append(portLabels, "path")...)
	txBytes    = desc("port_transmit_bytes_total", "Bytes of Ethernet frames that the node sent, by the path from it.", append(portLabels, "path")...)
	portStack  = desc("port_fastpath_exits_total", "Packets that arrived on the fast path and left it for the node's stack, by reason.", append(portLabels, "reason")...)
	portDrops  = desc("port_drops_total", "Packets to or from the node that were dropped, by reason.", append(portLabels, "reason")...)
	pathUp     = desc("path_up", "Whether the interface's link has a path to the peer across the underlay.", pathLabels...)
	pathMTU    = desc("path_mtu_bytes", "What the underlay carries on the path to the peer.", pathLabels...)
	tunnelRx   = desc("tunnel_receive_packets_total", "Packets that the network's LAN received from the peer.", tunnelLabels...)
	tunnelTx   = desc("tunnel_transmit_packets_total", "Packets that the network's LAN sent to the peer.", tunnelLabels...)
	tunnelDrop = desc("tunnel_drops_total", "Packets of the network's LAN to and from the peer that were dropped, by reason.", append(tunnelLabels, "reason")...)
	nodeMemory = desc("node_memory_bytes", "Memory that the node uses.", "vnet", "node")
	nodeCPU    = desc("node_cpu_seconds_total", "Processor time that the node has used.", "vnet", "node")
	nodeFast   = desc("node_fastpath", "Whether the node's packets may take the fast path.", "vnet", "node")
	serviceUp  = desc("node_service_up", "Whether the node's service runs.", "vnet", "node", "service")
	repairs    = desc("node_repairs_total", "How often what the node's root did to the node's own interfaces was repaired.", "vnet", "node")
	degraded   = desc("node_degraded", "1 where the node runs and something in it is not as it should be: trellis show says what.", "vnet", "node")
	restarts   = desc("node_service_restarts_total", "How often the node's service was started again.", "vnet", "node", "service")
	uplinkInfo = desc("uplink_info", "Always 1; the labels say how the uplink's programs are attached.", "interface", "xdp")
	uplinkMTU  = desc("uplink_mtu_bytes", "The uplink's MTU.", "interface")
	uplinkDrop = desc("uplink_drops_total", "Packets that came by the uplink and no port can be charged with, by reason.", "interface", "reason")
)

// machine collects what the agent of this machine counts.
type machine struct {
	agent Agent
	log   *slog.Logger
}

// Describe implements [prometheus.Collector].
func (*machine) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		rxPackets, rxBytes, txPackets, txBytes, portStack, portDrops, pathUp, pathMTU, tunnelRx, tunnelTx, tunnelDrop,
		nodeMemory, nodeCPU, nodeFast, serviceUp, restarts, repairs, degraded, uplinkInfo, uplinkMTU, uplinkDrop,
	} {
		out <- d
	}
}

// Collect implements [prometheus.Collector].
func (m *machine) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	ports, err := m.agent.AllPortStats(ctx)
	if source("ports").report(out, m.log, err) {
		for vnet, all := range ports {
			for object, p := range all {
				if link, peer, ok := agentapi.SplitTunnel(object); ok {
					reportTunnel(out, p, vnet, link, peer)
					continue
				}
				node, iface, _ := strings.Cut(object, ":")
				reportPort(out, p, vnet, node, iface)
			}
		}
	}
	nodes, err := m.agent.AllNodeStats(ctx)
	if source("nodes").report(out, m.log, err) {
		for vnet, all := range nodes {
			for node, n := range all {
				reportNode(out, n, vnet, node)
			}
		}
	}
	uplinks, err := m.agent.UplinkStats(ctx)
	if source("uplinks").report(out, m.log, err) {
		for _, u := range uplinks {
			reportUplink(out, u)
		}
	}
}

func reportPort(out chan<- prometheus.Metric, p agentapi.PortStats, labels ...string) {
	for _, c := range []struct {
		desc      *prometheus.Desc
		all, fast uint64
	}{
		{rxPackets, p.RxPackets, p.RxFastPackets},
		{rxBytes, p.RxBytes, p.RxFastBytes},
		{txPackets, p.TxPackets, p.TxFastPackets},
		{txBytes, p.TxBytes, p.TxFastBytes},
	} {
		counter(out, c.desc, float64(c.fast), append(labels, fast)...)
		// The two were not read in one instant.
		counter(out, c.desc, float64(c.all-min(c.fast, c.all)), append(labels, stack)...)
	}
	for reason, n := range p.StackBy {
		counter(out, portStack, float64(n), append(labels, reason)...)
	}
	for reason, n := range p.DropsBy {
		counter(out, portDrops, float64(n), append(labels, reason)...)
	}
	for _, path := range p.Paths {
		of := append([]string{path.Peer}, labels...)
		gauge(out, pathUp, truth(path.State == agentapi.PathUp), of...)
		if path.MTU > 0 {
			gauge(out, pathMTU, float64(path.MTU), of...)
		}
	}
}

func reportTunnel(out chan<- prometheus.Metric, p agentapi.PortStats, labels ...string) {
	counter(out, tunnelRx, float64(p.RxPackets), labels...)
	counter(out, tunnelTx, float64(p.TxPackets), labels...)
	for reason, n := range p.DropsBy {
		counter(out, tunnelDrop, float64(n), append(labels, reason)...)
	}
}

func reportNode(out chan<- prometheus.Metric, n agentapi.NodeStats, labels ...string) {
	gauge(out, nodeMemory, float64(n.Memory), labels...)
	counter(out, nodeCPU, n.CPU, labels...)
	if n.FastPath != "" {
		gauge(out, nodeFast, truth(n.FastPath == agentapi.FastPathOn), labels...)
	}
	if n.State != "" {
		gauge(out, degraded, truth(n.State == store.NodeDegraded), labels...)
		counter(out, repairs, float64(n.Repairs), labels...)
	}
	for _, s := range n.Services {
		of := append(labels[:len(labels):len(labels)], s.Name)
		gauge(out, serviceUp, truth(s.State == "running"), of...)
		counter(out, restarts, float64(s.Restarts), of...)
	}
}

func reportUplink(out chan<- prometheus.Metric, u agentapi.UplinkStats) {
	gauge(out, uplinkInfo, 1, u.Interface, u.XDP)
	if u.MTU > 0 {
		gauge(out, uplinkMTU, float64(u.MTU), u.Interface)
	}
	for reason, n := range u.Drops {
		counter(out, uplinkDrop, float64(n), u.Interface, reason)
	}
}
