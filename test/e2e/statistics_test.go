package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"trellis/test/testenv"
)

// chain goes from one host over a router on the next to a third one.
const chain = `name: chain
routing: static
nodes: {a: {on: alpha}, b: {on: beta}, c: {on: gamma}, d: {on: alpha}}
links:
  - {name: ab, endpoints: [a, b]}
  - {name: bc, endpoints: [b, c]}
  - {name: slow, endpoints: [a, d], rate: 1mbit}
`

// counted is the counters of `trellis show`.
type counted struct {
	Missing []string
	Nodes   []struct{ Name, Host, FastPath string }
	Links   []struct {
		Ends []end
	}
}

type end struct {
	Node, Name                   string
	RxPackets, TxPackets         uint64
	RxFastPackets, TxFastPackets uint64
	RxBytes, TxBytes             uint64
	RxFastBytes, TxFastBytes     uint64
	Drops                        uint64
	DropsByReason                map[string]uint64
	StackByReason                map[string]uint64
}

func readCounted(t *testing.T, c client) counted {
	t.Helper()
	return decode[counted](t, c.Must("show", "chain", "-o", "json"))
}

// end gives one interface's counters.
func (f counted) end(t *testing.T, name string) end {
	t.Helper()
	for _, l := range f.Links {
		for _, e := range l.Ends {
			if e.Node+":"+e.Name == name {
				return e
			}
		}
	}
	t.Fatalf("there is no %s", name)
	return end{}
}

func (f counted) fastPath(node string) string {
	for _, n := range f.Nodes {
		if n.Name == node {
			return n.FastPath
		}
	}
	return ""
}

// loopback gives a node's IPv4 loopback.
func loopback(t *testing.T, c client, network, node string) string {
	t.Helper()
	for _, n := range show(t, c, network).Nodes {
		if n.Name == node {
			return n.Loopbacks[0]
		}
	}
	t.Fatalf("%s has no node %s", network, node)
	return ""
}

// scrape reads a host's figures as Prometheus does.
func scrape(t *testing.T, h *testenv.Host) string {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(h.RunDir, "trellis.sock"))
	}}}
	defer client.CloseIdleConnections()
	r, err := client.Get("http://trellis/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != http.StatusOK {
		t.Fatalf("%s: %v: %s", r.Status, err, text)
	}
	return string(text)
}

// metric gives the value of a series; the labels are as they are told, sorted.
func metric(t *testing.T, text, series string) float64 {
	t.Helper()
	m := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(series) + ` (\S+)$`).FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("no series %s", series)
	}
	v, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// TestStatisticsAcrossMachines counts known packets on their way through a router of
// another host, by every means that tells of them.
func TestStatisticsAcrossMachines(t *testing.T) {
	t.Parallel()
	testenv.NeedCommand(t, "ping", "tcpdump", "nft", "bash")
	s := testenv.StartSandbox(t, testenv.SandboxOptions{})
	s.Must("up", write(t, "chain.yaml", chain))
	s.Must("ping", "chain") // the neighbours are known from here on
	target := loopback(t, s, "chain", "c")
	echoes := func(n int) {
		t.Helper()
		s.Must("exec", "chain/a", "--", "ping", "-q", "-c", fmt.Sprint(n), "-i", "0.01", target)
	}

	t.Run("the fast path's packets are counted", func(t *testing.T) {
		const n = 100
		before := readCounted(t, s)
		echoes(n)
		after := readCounted(t, s)
		for _, c := range []struct {
			at           string
			rxFast, fast bool // arrives as XDP frames; is forwarded as such
		}{
			{"a:eth1", true, false}, {"b:eth1", true, true}, {"b:eth2", true, true}, {"c:eth1", true, false},
		} {
			was, is := before.end(t, c.at), after.end(t, c.at)
			rx, tx := is.RxPackets-was.RxPackets, is.TxPackets-was.TxPackets
			rxFast, txFast := is.RxFastPackets-was.RxFastPackets, is.TxFastPackets-was.TxFastPackets
			// The few more are neighbour discovery and the like.
			if rx < n || rx > n+20 || tx < n || tx > n+20 || rxFast < n || rxFast > rx {
				t.Errorf("%s: received %d, of these fast %d, sent %d; want %d of each", c.at, rx, rxFast, tx, n)
			}
			if c.fast && (txFast < n || txFast > tx) || !c.fast && txFast > 0 {
				t.Errorf("%s: %d of %d were sent by the fast path", c.at, txFast, tx)
			}
			if bytes := is.TxBytes - was.TxBytes; bytes < n*98 || bytes > n*98+20*200 { // Ethernet, IPv4, ICMP and 56 bytes
				t.Errorf("%s: sent %d bytes", c.at, bytes)
			}
			if c.fast && is.TxFastBytes-was.TxFastBytes != txFast*98 {
				t.Errorf("%s: %d bytes in %d packets by the fast path", c.at, is.TxFastBytes-was.TxFastBytes, txFast)
			}
		}
	})

	t.Run("Prometheus is told the same", func(t *testing.T) {
		b := readCounted(t, s).end(t, "b:eth2")
		text := scrape(t, s.Host("beta"))
		problems, err := promlint.New(strings.NewReader(text)).Lint()
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range problems {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
		of := func(name, path string) float64 {
			return metric(t, text, fmt.Sprintf(`trellis_port_%s_total{interface="eth2",node="b",path="%s",vnet="chain"}`, name, path))
		}
		if got := of("transmit_packets", "fast"); got != float64(b.TxFastPackets) {
			t.Errorf("sent by the fast path: %v, show says %d", got, b.TxFastPackets)
		}
		if got := of("receive_bytes", "fast"); got != float64(b.RxFastBytes) {
			t.Errorf("received by the fast path: %v bytes, show says %d", got, b.RxFastBytes)
		}
		for series, want := range map[string]float64{
			`trellis_path_up{interface="eth2",node="b",peer="gamma",vnet="chain"}`:        1,
			`trellis_path_mtu_bytes{interface="eth2",node="b",peer="gamma",vnet="chain"}`: 1500,
			`trellis_node_fastpath{node="b",vnet="chain"}`:                                1,
			`trellis_uplink_info{interface="eth1",xdp="native"}`:                          1,
			`trellis_host_up{host="gamma"}`:                                               1,
			`trellis_vnet_nodes_running{vnet="chain"}`:                                    4,
			`trellis_source_up{source="ports"}`:                                           1,
		} {
			if got := metric(t, text, series); got != want {
				t.Errorf("%s %v, want %v", series, got, want)
			}
		}
		if strings.Contains(text, `node="a"`) {
			t.Error("beta tells of a node that alpha runs")
		}
	})

	t.Run("a tenant's rules take its node off the fast path", func(t *testing.T) {
		rules := "table ip t { chain f { type filter hook forward priority 0; counter; }; }"
		s.Must("exec", "chain/b", "--", "nft", rules)
		if got := readCounted(t, s).fastPath("b"); !strings.HasPrefix(got, "off: ") || !strings.Contains(got, "rules") {
			t.Errorf("the fast path of b is %q", got)
		}
		before := readCounted(t, s).end(t, "b:eth2")
		echoes(20)
		after := readCounted(t, s).end(t, "b:eth2")
		if after.TxFastPackets != before.TxFastPackets || after.TxPackets < before.TxPackets+20 {
			t.Errorf("with rules: %+v, then %+v", before, after)
		}
		// Requests and answers come in at both ends, and meet the rules.
		if after.StackByReason["netfilter"] < before.StackByReason["netfilter"]+20 {
			t.Errorf("what the rules have kept from the fast path: %v, then %v", before.StackByReason, after.StackByReason)
		}
		if got := metric(t, scrape(t, s.Host("beta")), `trellis_port_fastpath_exits_total{interface="eth2",node="b",reason="netfilter",vnet="chain"}`); got < float64(after.StackByReason["netfilter"]) {
			t.Errorf("Prometheus is told of %v packets for the stack, show of %v", got, after.StackByReason)
		}
		if out := s.Must("show", "chain/b"); !regexp.MustCompile(`(?m)^eth2 +netfilter +[1-9]`).MatchString(out) {
			t.Errorf("show says\n%s", out)
		}
		s.Must("exec", "chain/b", "--", "nft", "flush", "ruleset")
		if got := readCounted(t, s).fastPath("b"); got != "on" {
			t.Errorf("without the rules again, the fast path of b is %q", got)
		}
		echoes(20)
		if again := readCounted(t, s).end(t, "b:eth2"); again.TxFastPackets < after.TxFastPackets+20 {
			t.Errorf("without the rules again: %+v, then %+v", after, again)
		}
	})

	t.Run("what a rate drops is counted", func(t *testing.T) {
		d := loopback(t, s, "chain", "d")
		// Far more at once than the link's queue holds. Each datagram has a socket of
		// its own, since one alone would wait for the queue.
		s.Must("exec", "chain/a", "--", "bash", "-c",
			"printf -v data %01400d 0; for ((i = 0; i < 1000; i++)); do echo $data > /dev/udp/"+d+"/9; done 2> /dev/null || true")
		f := readCounted(t, s)
		dropped := f.end(t, "d:eth1")
		if dropped.DropsByReason["queue"] == 0 || dropped.Drops < dropped.DropsByReason["queue"] {
			t.Errorf("towards d: %+v", dropped)
		}
		if got := metric(t, scrape(t, s.Host("alpha")), `trellis_port_drops_total{interface="eth1",node="d",reason="queue",vnet="chain"}`); got < float64(dropped.DropsByReason["queue"]) {
			t.Errorf("Prometheus is told of %v drops, show of %+v", got, dropped)
		}
		if out := s.Must("show", "chain"); !regexp.MustCompile(`(?m)^d:eth1 +queue +[1-9]`).MatchString(out) {
			t.Errorf("show says\n%s", out)
		}
	})

	t.Run("captures reach another host", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "b.pcap")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		cmd := s.Host("alpha").Command(ctx, "capture", "chain/b:eth1", "-c", "40", "-w", file)
		var said bytes.Buffer
		cmd.Stderr = &said
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- cmd.Wait() }()
		for ended := false; !ended; {
			select {
			case err := <-done:
				if err != nil {
					t.Fatalf("capture: %v: %s", err, said.String())
				}
				ended = true
			case <-time.After(200 * time.Millisecond):
				echoes(10)
			}
		}
		out, err := exec.Command("tcpdump", "-n", "-r", file, "icmp").Output()
		if err != nil {
			t.Fatal(err)
		}
		requests, replies := bytes.Count(out, []byte("echo request")), bytes.Count(out, []byte("echo reply"))
		if requests+replies < 20 || requests == 0 || replies == 0 {
			t.Errorf("captured %d requests and %d replies\n%s", requests, replies, out)
		}
	})

	t.Run("a host that vanishes costs its own statistics", func(t *testing.T) {
		s.Sandbox("kill", "beta")
		eventually(t, 30*time.Second, "beta has vanished", func() bool { return substrate(t, s).states()["beta"] == "vanished" })
		f := readCounted(t, s)
		if len(f.Missing) != 1 || !strings.Contains(f.Missing[0], "no statistics from beta: ") || f.end(t, "a:eth1").RxPackets == 0 || f.end(t, "b:eth1").RxPackets != 0 {
			t.Errorf("show says %+v", f)
		}
		began := time.Now()
		_, stderr, code := s.Trellis("exec", "chain/b", "--", "true")
		if took := time.Since(began); code != 1 || !strings.Contains(stderr, "substrate node beta has not been heard of") || took > 5*time.Second {
			t.Errorf("exec: status %d after %v: %s", code, took, stderr)
		}
		out, _, code := s.Trellis("ping", "chain", "-o", "json")
		p := decode[struct {
			Pairs, Reachable int
			Failed           []struct{ From, To, Reason string }
		}](t, out)
		// Its packets go on without its agent: only what beta was to send is missing.
		if code != 1 || p.Pairs != 24 || p.Reachable != 18 || len(p.Failed) != 6 {
			t.Errorf("ping: status %d, %+v", code, p)
		}
		for _, failed := range p.Failed {
			if failed.From != "b" || !strings.HasPrefix(failed.Reason, "not tried: substrate node beta") {
				t.Errorf("ping: %+v", failed)
			}
		}
		if got := metric(t, scrape(t, s.Host("alpha")), `trellis_host_up{host="beta"}`); got != 0 {
			t.Errorf("Prometheus is told that beta lives")
		}
		s.Sandbox("start", "beta")
		eventually(t, 60*time.Second, "beta is back", func() bool {
			f := readCounted(t, s)
			return len(f.Missing) == 0 && f.end(t, "b:eth1").RxFastPackets > 0 && reachable(s, "chain")
		})
	})
}
