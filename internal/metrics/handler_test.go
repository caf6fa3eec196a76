package metrics

import (
	"context"
	"errors"
	"flag"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"trellis/internal/agentapi"
	"trellis/internal/store"
)

var update = flag.Bool("update", false, "rewrite the golden file")

// fakes play an agent and a store.
type fakes struct{ err error }

func (f fakes) AllNodeStats(context.Context) (map[string]map[string]agentapi.NodeStats, error) {
	return map[string]map[string]agentapi.NodeStats{
		"x": {
			"a": {Memory: 3 << 20, CPU: 0.5, FastPath: agentapi.FastPathOn, Services: []agentapi.ServiceStats{{Name: "zebra", State: "running"}, {Name: "ospfd", State: "waiting", Restarts: 4}}},
			"b": {Memory: 1 << 20, CPU: 1.25, FastPath: "off: nftables rules", State: "degraded", Repairs: 2},
		},
		"y": {"a": {Memory: 5}},
	}, f.err
}

func (f fakes) AllPortStats(context.Context) (map[string]map[string]agentapi.PortStats, error) {
	return map[string]map[string]agentapi.PortStats{
		"x": {
			"a:eth1": {
				RxPackets: 10, RxBytes: 1000, TxPackets: 20, TxBytes: 2000, RxFastPackets: 4, RxFastBytes: 400, TxFastPackets: 20, TxFastBytes: 2001,
				Drops: 3, DropsBy: map[string]uint64{"runt": 1, "queue": 2}, StackBy: map[string]uint64{"netfilter": 6},
				Paths: []agentapi.PathStats{
					{Peer: "beta", Remote: netip.MustParseAddr("192.0.2.2"), Key: 5, MTU: 1400, State: agentapi.PathUp},
					{Peer: "gamma", Remote: netip.MustParseAddr("192.0.2.3"), Key: 6, State: agentapi.PathDown, Message: "no neighbour"},
				},
			},
		},
		"y": {"a:eth1": {}, "@exchange>beta": {RxPackets: 8, TxPackets: 9, Drops: 1, DropsBy: map[string]uint64{"too-long": 1}}},
	}, f.err
}

func (f fakes) UplinkStats(context.Context) ([]agentapi.UplinkStats, error) {
	return []agentapi.UplinkStats{{Interface: "eth1", XDP: "native", MTU: 1500, Drops: map[string]uint64{"unknown-peer": 7}}}, f.err
}

func (f fakes) Hosts(context.Context) (map[string]store.HostState, error) {
	return map[string]store.HostState{
		"alpha": {Host: store.Host{Name: "alpha", Memory: 1 << 30, CPU: 2, MTU: 1500}, Alive: true, Seen: time.Unix(1777809600, 0)},
		"beta":  {Host: store.Host{Name: "beta", Memory: 2 << 30, CPU: 4}, Seen: time.Unix(1777809500, 5e8)},
	}, f.err
}

func (f fakes) Summaries(context.Context) ([]store.Summary, error) {
	return []store.Summary{{Name: "x", Generation: 9, Nodes: 3, Links: 2}}, f.err
}

func (f fakes) AllStatuses(context.Context) (map[string]map[string]*store.Status, error) {
	return map[string]map[string]*store.Status{"x": {
		"alpha": {Generation: 9, Phase: store.PhaseCreated, Routers: 2, Converged: 1, Nodes: map[string]store.NodeState{"a": {State: store.NodeRunning}, "b": {State: store.NodeFailed}}},
		"beta":  {Generation: 9, Phase: store.PhaseFailed, Routers: 1, Converged: 1, Nodes: map[string]store.NodeState{"c": {State: store.NodeRunning}}},
		"gamma": {Generation: 8, Phase: store.PhaseFailed, Routers: 5, Nodes: map[string]store.NodeState{"d": {State: store.NodeRunning}}},
	}}, f.err
}

func scrape(t *testing.T, c Config) string {
	t.Helper()
	server := httptest.NewServer(Handler(c))
	defer server.Close()
	r, err := http.Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != http.StatusOK {
		t.Fatalf("status %s, %v: %s", r.Status, err, text)
	}
	return string(text)
}

// ours leaves out what the Go runtime and the process tell.
func ours(text string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		if strings.Contains(line, "trellis_") {
			out.WriteString(line)
		}
	}
	return regexp.MustCompile(`goversion="[^"]*"`).ReplaceAllString(out.String(), `goversion="go"`)
}

func TestScrape(t *testing.T) {
	text := scrape(t, Config{Version: "v1", Agent: fakes{}, Store: fakes{}})
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	for _, name := range []string{"go_goroutines", "process_open_fds"} {
		if !strings.Contains(text, "\n"+name+" ") {
			t.Errorf("%s is missing", name)
		}
	}
	const golden = "testdata/scrape.txt"
	got := ours(text)
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("got\n%s\nwant\n%s\n(go test -update rewrites it)", got, want)
	}
}

// What cannot be read is said to be so, and the rest is told all the same.
func TestScrapeWithoutStatistics(t *testing.T) {
	quiet := slog.New(slog.DiscardHandler)
	text := scrape(t, Config{Version: "v1", Agent: fakes{errors.New("no netlink")}, Store: fakes{}, Log: quiet})
	for _, want := range []string{
		`trellis_source_up{source="ports"} 0`, `trellis_source_up{source="nodes"} 0`, `trellis_source_up{source="uplinks"} 0`,
		`trellis_source_up{source="hosts"} 1`, `trellis_source_up{source="vnets"} 1`, `trellis_host_up{host="beta"} 0`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("%s is missing in\n%s", want, ours(text))
		}
	}
	if strings.Contains(text, "trellis_port_") {
		t.Error("statistics that could not be read")
	}
	text = ours(scrape(t, Config{Version: "v1"}))
	if strings.Count(text, "\n") != 3 || !strings.Contains(text, "trellis_build_info{") {
		t.Errorf("without an agent and a store:\n%s", text)
	}
}

// docs/metrics.md names every metric with its labels, and no other.
func TestDocumentation(t *testing.T) {
	b, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| `(trellis_[a-z_]+)` \\| ([^|]*) \\|").FindAllStringSubmatch(string(b), -1) {
		documented[m[1]] = strings.ReplaceAll(m[2], "`", "")
	}
	told := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^(trellis_[a-z_]+)(?:\{(.*)\})? `).FindAllStringSubmatch(scrape(t, Config{Agent: fakes{}, Store: fakes{}}), -1) {
		var labels []string
		for _, l := range regexp.MustCompile(`([a-z_]+)="[^"]*"`).FindAllStringSubmatch(m[2], -1) {
			labels = append(labels, l[1])
		}
		told[m[1]] = strings.Join(labels, ", ")
	}
	for name, labels := range told {
		if documented[name] != labels {
			t.Errorf("docs/metrics.md says %q of the labels of %s, which are %q", documented[name], name, labels)
		}
		delete(documented, name)
	}
	for name := range documented {
		t.Errorf("docs/metrics.md documents %s, which there is not", name)
	}
}
