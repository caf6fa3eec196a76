package metrics

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"trellis/internal/agentapi"
	"trellis/internal/store"
)

// Path is where a service offers its statistics.
const Path = "/metrics"

const (
	// scrapeTimeout bounds the reading for one scrape.
	scrapeTimeout = 8 * time.Second
	// inFlight is how many scrapes may be read side by side; more are refused.
	inFlight = 4
)

// Agent is what the statistics of this machine are read from.
type Agent interface {
	// AllNodeStats gives what the nodes that run here use, by VNet and name.
	AllNodeStats(context.Context) (map[string]map[string]agentapi.NodeStats, error)
	// AllPortStats gives the counters of all interfaces here, by VNet and
	// "node:interface".
	AllPortStats(context.Context) (map[string]map[string]agentapi.PortStats, error)
	// UplinkStats gives those of the machine's uplinks.
	UplinkStats(context.Context) ([]agentapi.UplinkStats, error)
}

// Store is what the statistics of all networks are read from.
type Store interface {
	Hosts(context.Context) (map[string]store.HostState, error)
	Summaries(context.Context) ([]store.Summary, error)
	AllStatuses(context.Context) (map[string]map[string]*store.Status, error)
}

// Config says what there is to report.
type Config struct {
	Version string
	Agent   Agent        // nil: no agent runs here
	Store   Store        // nil: this service answers for no networks
	Log     *slog.Logger // nil: [slog.Default]
}

// Handler answers scrapes, in the text format or in OpenMetrics.
func Handler(c Config) http.Handler {
	if c.Log == nil {
		c.Log = slog.Default()
	}
	build := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "trellis_build_info", Help: "Always 1; the labels say which Trellis runs.",
	}, []string{"version", "goversion"})
	build.WithLabelValues(c.Version, runtime.Version()).Set(1)
	r := prometheus.NewRegistry()
	r.MustRegister(build, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if c.Agent != nil {
		r.MustRegister(&machine{agent: c.Agent, log: c.Log})
	}
	if c.Store != nil {
		r.MustRegister(&stored{store: c.Store, log: c.Log})
	}
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{
		ErrorLog: errorLog{c.Log}, ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: inFlight,
	})
}

// errorLog takes what promhttp has to say.
type errorLog struct{ log *slog.Logger }

func (l errorLog) Println(v ...any) { l.log.Warn("metrics", "error", fmt.Sprint(v...)) }

// source is what is read at once for a scrape.
type source string

var readable = desc("source_up", "Whether the statistics of a source could be read for this scrape.", "source")

// report says whether the source could be read, and logs why not.
func (s source) report(out chan<- prometheus.Metric, log *slog.Logger, err error) bool {
	up := 1.0
	if err != nil {
		up = 0
		log.Warn("statistics for a scrape cannot be read", "source", string(s), "error", err)
	}
	out <- prometheus.MustNewConstMetric(readable, prometheus.GaugeValue, up, string(s))
	return err == nil
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("trellis_"+name, help, labels, nil)
}

func counter(out chan<- prometheus.Metric, d *prometheus.Desc, v float64, labels ...string) {
	out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
}

func gauge(out chan<- prometheus.Metric, d *prometheus.Desc, v float64, labels ...string) {
	out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
