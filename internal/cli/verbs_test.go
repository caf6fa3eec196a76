package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	trellisv1 "trellis/api/trellis/v1"
	"trellis/internal/wire"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// golden compares the output of the last command with a file in testdata.
func (e *testEnv) golden(name string) {
	e.t.Helper()
	path := filepath.Join("testdata", name)
	got := e.out.Bytes()
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			e.t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		e.t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		e.t.Errorf("%s differs; got\n%s\nwant\n%s\n(go test -update rewrites it)", path, got, want)
	}
}

func TestOutputOfEveryFormat(t *testing.T) {
	f, env := startFake(t)
	f.ping = &trellisv1.PingResult{
		Pairs: 12, Reachable: 9, RttMin: 0.000021, RttMedian: 0.00005, RttMax: 0.0012, Seed: 7,
		Failed: []*trellisv1.PingFailure{
			{From: "a", To: "c", Family: "ipv4", Reason: "no answer"}, {From: "a", To: "c", Family: "ipv6", Reason: "no answer"},
			{From: "b", To: "c", Family: "ipv6", Reason: "network unreachable"},
		},
	}
	file := env.file("triangle.yaml", triangle)
	for _, c := range []struct {
		name   string
		status int
		args   []string
	}{
		{"up", 0, []string{"up", file}},
		{"up-nowait", 0, []string{"up", "--wait=false", file}},
		{"dry-run", 0, []string{"up", "--dry-run", file}},
		{"ls", 0, []string{"ls"}},
		{"show", 0, []string{"show", "triangle"}},
		{"show-node", 0, []string{"show", "triangle/c"}},
		{"substrate-ls", 0, []string{"substrate", "ls"}},
		{"ping", 1, []string{"ping", "triangle"}},
		{"link-set", 0, []string{"link", "set", "triangle", "ab", "--rate", "20mbit"}},
	} {
		for _, format := range []string{"table", "json", "yaml"} {
			if format == "table" && (c.name == "ls" || c.name == "substrate-ls") {
				continue // has an age
			}
			if got := env.run(append(c.args, "-o", format)...); got != c.status {
				t.Errorf("%s: exit status %d, want %d: %s", c.name, got, c.status, env.err.String())
			}
			if format == "json" && !json.Valid(env.out.Bytes()) {
				t.Errorf("%s -o json printed no JSON:\n%s", c.name, env.out.String())
			}
			env.golden(c.name + "." + format)
		}
	}
}

func TestLsTable(t *testing.T) {
	var b bytes.Buffer
	now := time.Unix(created, 0).Add(3*time.Hour + 20*time.Minute)
	list := []summaryView{
		{Name: "abilene", State: "running", Nodes: 11, NodesUp: 11, Links: 14, Routing: "ospf", Created: time.Unix(created, 0).UTC().Format(time.RFC3339), Hosts: []string{"alpha", "beta"}},
		{Name: "kdl", State: "running", Nodes: 754, NodesUp: 754, Links: 899, Routing: "static", Hosts: []string{"a", "b", "c", "d", "e"}},
		{Name: "x", State: "failed", Nodes: 2, NodesUp: 1, Links: 1, Routing: "none", Message: "image missing"},
	}
	tableSummaries(&b, list, now)
	want := `NAME     STATE    NODES  LINKS  ROUTING  HOSTS             AGE  MESSAGE
abilene  running     11     14  ospf     alpha beta         3h
kdl      running    754    899  static   a b c and 2 more    -
x        failed     1/2      1  none     -                   -  image missing
`
	if b.String() != want {
		t.Errorf("got\n%swant\n%s", b.String(), want)
	}
}

func TestSubstrateLsTable(t *testing.T) {
	var hosts []hostView
	for _, h := range twoHosts() {
		hosts = append(hosts, viewHost(h))
	}
	var b bytes.Buffer
	tableHosts(&b, hosts, time.Unix(created, 0))
	want := `NAME   STATE     HEARD  ADDRESSES           MTU  NODES       MEMORY    CPU  UPLINKS                    VERSION  MESSAGE
host1  alive       now  192.0.2.1 fd00::1  1500      2  512MiB/4GiB  0.5/8  eth1 native, eth2 generic  v9       eth2: the driver has no native XDP: generic mode costs several times as much a packet
host2  vanished     1m  -                     -      1    1GiB/1GiB    2/2  -                          v9       clock 4 s ahead

HOST   UPLINK  REASON        PACKETS
host1  eth1    gre-version         3
host1  eth1    unknown-peer       12
`
	if b.String() != want {
		t.Errorf("got\n%swant\n%s", b.String(), want)
	}
}

// What up says of a network whose routes are not, or not all, there.
func TestUpSaysWhatWasLookedAt(t *testing.T) {
	for _, c := range []struct {
		result *trellisv1.ApplyResult
		wait   bool
		want   string
	}{
		{&trellisv1.ApplyResult{Changes: 6, CreatedSeconds: 0.25, ConvergedSeconds: 1.5, Checked: 3, Complete: 3}, true, "in place after 0.25s, converged after 1.50s\n"},
		{&trellisv1.ApplyResult{Changes: 6, CreatedSeconds: 0.25}, true, "in place after 0.25s (no routes are checked)\n"},
		{&trellisv1.ApplyResult{Changes: 6, CreatedSeconds: 0.25, Checked: 3, Complete: 2, Message: "c lacks 10.0.0.1/32"}, true, "in place after 0.25s; 2 of 3 nodes with all routes: c lacks 10.0.0.1/32\n"},
		{&trellisv1.ApplyResult{Changes: 6, CreatedSeconds: 0.25, ConvergedSeconds: 1.5, Checked: 3, Complete: 2}, true, "in place after 0.25s; 2 of 3 nodes with all routes\n"},
		{&trellisv1.ApplyResult{Changes: 6, CreatedSeconds: 0.25}, false, "in place after 0.25s\n"},
		{&trellisv1.ApplyResult{Checked: 3, Complete: 3, ConvergedSeconds: 0.1}, true, "nothing to change, converged after 0.10s\n"},
	} {
		env := newTestEnv(t)
		c.result.Vnet, c.result.Nodes, c.result.Links = "x", 3, 3
		if err := printUp(env.Env, &choice{value: formatTable}, c.result, c.wait); err != nil {
			t.Fatal(err)
		}
		if got, want := env.out.String(), "x: 3 nodes, 3 links; "+c.want; got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// The same through the verb, where an own configuration's daemons leave routes missing.
func TestUpOfAnOwnConfiguration(t *testing.T) {
	f, env := startFake(t)
	f.apply = func(_ context.Context, _ *trellisv1.ApplyRequest, s *connect.ServerStream[trellisv1.ApplyResponse]) error {
		return s.Send(&trellisv1.ApplyResponse{Event: &trellisv1.ApplyResponse_Result{Result: &trellisv1.ApplyResult{
			Vnet: "triangle", Nodes: 3, Links: 3, Changes: 6, CreatedSeconds: 0.25, ConvergedSeconds: 1.5,
			Checked: 3, Complete: 1, Message: "b's daemons are not ready, c has no route to 10.0.0.1/32 (a)",
		}}})
	}
	file := env.file("own.yaml", "name: triangle\nnodes: {a: {}, b: {}, c: {}}\nlinks: [[a, b], [b, c], [c, a]]\n")
	env.want(0, "triangle: 3 nodes, 3 links; in place after 0.25s; 1 of 3 nodes with all routes: b's daemons are not ready, c has no route to 10.0.0.1/32 (a)\n", "up", file)
	if env.run("up", "-o", "json", file) != 0 || !strings.Contains(env.out.String(), `"complete": 1`) || !strings.Contains(env.out.String(), "daemons are not ready") {
		t.Errorf("%s", env.out.String())
	}
}

// A service of another protocol gets no request, whatever the verb.
func TestServiceOfAnotherProtocol(t *testing.T) {
	f := &fakeService{vnets: map[string]*trellisv1.VNet{"triangle": runningTriangle()}, silent: true}
	env := newTestEnv(t)
	f.listen(t, env)
	f.apply = func(context.Context, *trellisv1.ApplyRequest, *connect.ServerStream[trellisv1.ApplyResponse]) error {
		t.Error("it was asked to apply something")
		return nil
	}
	file := env.file("t.yaml", triangle)
	for _, args := range [][]string{{"up", file}, {"ls"}, {"exec", "triangle/a", "--", "true"}, {"down", "triangle"}} {
		env.wantError(1, ", the service at unix://"+env.socket()+" is v9 (API protocol 1): restart the service with this build (networks run on), or use the build of the service\n", args...)
	}
	if len(f.exec) > 0 || f.vnets["triangle"] == nil {
		t.Errorf("it was asked: %v, %v", f.exec, f.vnets)
	}
	if env.run("version") != 0 || !strings.Contains(env.out.String(), "service v9") {
		t.Errorf("%s%s", env.out.String(), env.err.String())
	}
}

func TestUpEstimates(t *testing.T) {
	_, env := startFake(t)
	file := env.file("t.yaml", "name: triangle\nnodes: {a: {}, b: {}, c: {}}\nlinks: [[a, b], [b, c], [c, a]]\n")
	if env.run("up", file) != 0 || !strings.HasPrefix(env.err.String(), "triangle: 3 nodes, about 30 MiB\ntrellis: warning: host1 has 20 MiB\n") {
		t.Errorf("%q", env.err.String())
	}
}

func TestSubstrateForget(t *testing.T) {
	_, env := startFake(t)
	env.wantError(1, "trellis: forget host host1: its agent lives; stop it first\n", "substrate", "forget", "host1")
	env.want(0, "host2: forgotten\n", "substrate", "forget", "host2")
	env.wantError(1, "there is no substrate node host2", "substrate", "forget", "host2")
}

func TestShowHasALANsTunnels(t *testing.T) {
	f, env := startFake(t)
	v := runningTriangle()
	v.Links = v.Links[:1]
	v.Links[0].Type, v.Links[0].Name = "lan", "exchange"
	f.vnets["triangle"] = v
	f.tunnels = map[string][]*trellisv1.Tunnel{"exchange": {
		{Host: "host1", Peer: "host2", RxPackets: 5, TxPackets: 6, Drops: 3, DropsByReason: map[string]uint64{"too-long": 3}},
		{Host: "host2", Peer: "host1", RxPackets: 6, TxPackets: 5},
	}}
	if env.run("show", "triangle") != 0 || !strings.Contains(env.out.String(), "\nexchange, host1 to host2  too-long        3\n") {
		t.Errorf("%s%s", env.out.String(), env.err.String())
	}
	env.run("show", "triangle", "-o", "json")
	var got networkView
	if err := json.Unmarshal(env.out.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if n := got.Links[0].Tunnels; len(n) != 2 || n[0].Drops != 3 || n[0].DropsByReason["too-long"] != 3 || n[1].Host != "host2" || n[1].RxPackets != 6 {
		t.Errorf("tunnels %+v", n)
	}
}

// Statistics that one machine has not sent are named, and the others shown.
func TestShowNamesMissingStatistics(t *testing.T) {
	f, env := startFake(t)
	f.missing = []string{"no statistics from host2: substrate node host2 has vanished"}
	for _, what := range []string{"triangle", "triangle/c"} {
		if env.run("show", what) != 0 || !strings.Contains(env.out.String(), "\n"+f.missing[0]+"\n") {
			t.Errorf("show %s: %s%s", what, env.out.String(), env.err.String())
		}
		if env.run("show", what, "-o", "json") != 0 || !strings.Contains(env.out.String(), `"missing": [`) {
			t.Errorf("show %s -o json: %s", what, env.out.String())
		}
	}
}

func TestDownIsIdempotent(t *testing.T) {
	_, env := startFake(t)
	env.want(0, "triangel: no such network, nothing to do; did you mean \"triangle\"?\n", "down", "triangel")
	env.want(0, "triangle: gone after 0.10s\n", "down", "triangle")
	env.want(0, "triangle: no such network, nothing to do\n", "down", "triangle")
	env.want(0, "{\n  \"vnets\": [],\n  \"seconds\": 0\n}\n", "down", "-f", env.file("t.yaml", triangle), "-o", "json")
	env.want(0, "no networks; whatever was left of Trellis is gone\n", "down", "--all")
	env.want(0, "[]\n", "ls", "-o", "json")
}

func TestMistakesEndWithStatus2(t *testing.T) {
	_, env := startFake(t)
	bad := env.file("bad.yaml", "name: x\nnodes: {a: {}}\nlnks: []\n")
	for _, c := range []struct {
		message string
		args    []string
	}{
		{`unknown verb "upp"; did you mean "up"?`, []string{"upp"}},
		{"unknown flag: --frob; see `trellis up --help`", []string{"up", "--frob"}},
		{"up needs FILE", []string{"up"}},
		{`show takes no argument "c" here`, []string{"show", "a", "c"}},
		{`"xml" is none of table, json, yaml`, []string{"ls", "-o", "xml"}},
		{bad + ":3: ", []string{"up", bad}},
		{bad + ":3: ", []string{"validate", bad}},
		{bad + ":3: ", []string{"graph", bad}},
		{bad + ":3: ", []string{"convert", bad}},
		{bad + ":3: ", []string{"down", "-f", bad}},
		{"there is no such file", []string{"up", env.RunDir + "/none.yaml"}},
		{"down needs one of VNET, -f FILE and --all", []string{"down"}},
		{"down needs one of VNET, -f FILE and --all", []string{"down", "a", "--all"}},
		{`"/x" names nothing`, []string{"show", "/x"}},
		{`"triangle" is not a node`, []string{"exec", "triangle", "--", "true"}},
		{"no command to run in triangle/a", []string{"exec", "triangle/a"}},
		{`"triangle/a" is not an interface`, []string{"capture", "triangle/a"}},
		{"standard input is no terminal", []string{"console", "triangle/a"}},
		{"standard input is no terminal", []string{"exec", "-t", "triangle/a", "sh"}},
		{"nothing to set", []string{"link", "set", "triangle", "ab"}},
		{"--rate: ", []string{"link", "set", "triangle", "ab", "--rate", "10"}},
		{"--loss: ", []string{"link", "set", "triangle", "ab", "--loss", "200%"}},
		{"--up and --down exclude each other", []string{"link", "set", "triangle", "ab", "--up", "--down"}},
		{"a delay cannot be negative", []string{"link", "set", "triangle", "ab", "--delay", "-1ms"}},
		{`unknown verb "link get"; did you mean "set"? ` + "`trellis link --help`", []string{"link", "get"}},
		{`unknown verb "substrate drop"`, []string{"substrate", "drop"}},
		{`unknown verb "substrate forgt"; did you mean "forget"?`, []string{"substrate", "forgt"}},
		{`unknown flag: --tiemout; did you mean --timeout? see`, []string{"up", "--tiemout", "3s", "x"}},
		{"substrate forget needs HOST", []string{"substrate", "forget"}},
		{`"rspec" is none of yaml`, []string{"convert", bad, "-o", "rspec"}},
		{"names no format", []string{"graph", "triangle", "-w", "x.png"}},
		{`no completion for "csh"`, []string{"completion", "csh"}},
		{"cannot be negative", []string{"ping", "triangle", "--sample", "-1"}},
		{"is not a service; write unix:///path", []string{"ls", "--address", "ftp://x"}},
		{"needs a --state-dir of its own", []string{"serve"}},
		{"exclude each other", []string{"serve", "--stop", "--background"}},
	} {
		env.wantError(2, c.message, c.args...)
		if env.out.Len() > 0 {
			t.Errorf("trellis %s wrote to standard output: %s", strings.Join(c.args, " "), env.out.String())
		}
	}
}

func TestFailuresEndWithStatus1(t *testing.T) {
	f, env := startFake(t)
	file := env.file("t.yaml", triangle)
	env.wantError(1, "trellis: there is no network x; `trellis ls` lists them\n", "show", "x")
	env.wantError(1, `triangle has no node "z"`, "show", "triangle/z")
	f.apply = func(_ context.Context, _ *trellisv1.ApplyRequest, s *connect.ServerStream[trellisv1.ApplyResponse]) error {
		return connect.NewError(connect.CodeResourceExhausted, errors.New("memory runs short"))
	}
	env.wantError(1, "trellis: memory runs short\n", "up", file)
	f.apply = func(context.Context, *trellisv1.ApplyRequest, *connect.ServerStream[trellisv1.ApplyResponse]) error {
		return connect.NewError(connect.CodeInvalidArgument, errors.New("node a: no such image"))
	}
	env.wantError(2, "trellis: node a: no such image\n", "up", file)
	f.apply = func(context.Context, *trellisv1.ApplyRequest, *connect.ServerStream[trellisv1.ApplyResponse]) error {
		return nil
	}
	env.wantError(1, "without a result", "up", file)

	env.RunDir += "/none"
	env.wantError(1, "no service answers at unix://"+env.socket()+"; start one with `trellis serve`", "ls")
	env.wantError(1, "no service answers at unix://", "up", file)
	env.wantError(1, "no service answers at unix://", "exec", "triangle/a", "--", "true")
}

// The service ends a call at its own time limit and says what was missing; the
// client must wait for that.
func TestTimeoutIsTheServices(t *testing.T) {
	f, env := startFake(t)
	f.apply = func(ctx context.Context, _ *trellisv1.ApplyRequest, s *connect.ServerStream[trellisv1.ApplyResponse]) error {
		if err := s.Send(progressOf("admitted", 0, 0, "")); err != nil {
			return err
		}
		<-ctx.Done()
		return connect.NewError(connect.CodeDeadlineExceeded, errors.New("not converged: c lacks 10.0.0.1/32"))
	}
	start := time.Now()
	env.wantError(1, "trellis: not converged: c lacks 10.0.0.1/32\n", "up", "--timeout", "200ms", env.file("t.yaml", triangle))
	if took := time.Since(start); took < 200*time.Millisecond || took > grace {
		t.Errorf("ended after %s, want about 200ms", took)
	}
}

func TestUpStartsAService(t *testing.T) {
	env := newTestEnv(t)
	file := env.file("t.yaml", triangle)
	t.Setenv(envStateDir, env.RunDir+"/state")
	f := &fakeService{vnets: map[string]*trellisv1.VNet{}}
	starts, stops := 0, 0
	env.start = func(_ context.Context, e *Env) error {
		starts++
		if e.stateDir() != env.RunDir+"/state" {
			t.Errorf("state directory %q", e.stateDir())
		}
		f.listen(t, env)
		return nil
	}
	env.stop = func(*Env) error { stops++; return nil }
	env.wantError(1, "no service answers", "ls") // reading starts nothing
	env.want(0, "triangle: 3 nodes, 3 links; in place after 0.25s, converged after 1.50s\n", "up", file)
	env.want(0, "triangle: 3 nodes, 3 links; in place after 0.25s, converged after 1.50s\n", "up", file)
	if starts != 1 || stops != 0 {
		t.Errorf("%d starts, %d stops, want 1 and 0", starts, stops)
	}
	env.start = func(context.Context, *Env) error { return errors.New("crun is missing; apt-get install crun") }
	env.RunDir += "/other"
	env.wantError(1, "start the service in the background: crun is missing; apt-get install crun", "up", file)
	env.wantError(1, "no service answers at unix:///nowhere", "--address", "unix:///nowhere", "up", file)
}

func TestDownStopsTheServiceThatItStarted(t *testing.T) {
	env := newTestEnv(t)
	t.Setenv(envStateDir, env.RunDir+"/state")
	f := &fakeService{vnets: map[string]*trellisv1.VNet{}}
	stops := 0
	env.start = func(context.Context, *Env) error { f.listen(t, env); return nil }
	env.stop = func(*Env) error { stops++; return nil }
	env.want(0, "no networks; whatever was left of Trellis is gone\n", "down", "--all")
	if stops != 1 {
		t.Errorf("stopped %d times, want once", stops)
	}
}

func TestSetLinkSendsOnlyNamedFields(t *testing.T) {
	f, env := startFake(t)
	env.run("link", "set", "triangle", "ab", "--rate", "none", "--loss", "1%", "--down")
	r := f.setLink
	if r == nil || r.Rate == nil || *r.Rate != 0 || r.Loss == nil || *r.Loss != 0.01 || r.Down == nil || !*r.Down || r.DelayNs != nil || r.JitterNs != nil {
		t.Errorf("sent %v", r)
	}
	env.run("link", "set", "triangle", "ab", "--delay", "2ms", "--jitter", "1ms", "--up")
	r = f.setLink
	if r.Rate != nil || r.GetDelayNs() != 2e6 || r.GetJitterNs() != 1e6 || r.Down == nil || *r.Down {
		t.Errorf("sent %v", r)
	}
}

func TestSetLinkNamesAnEnd(t *testing.T) {
	f, env := startFake(t)
	env.run("link", "set", "triangle", "ab", "a:eth1", "--down")
	if r := f.setLink; r == nil || r.Node != "a" || r.Interface != "eth1" || !r.GetDown() {
		t.Errorf("sent %v", r)
	}
	env.run("link", "set", "triangle", "ab", "b", "--up")
	if r := f.setLink; r.Node != "b" || r.Interface != "" || r.Down == nil || *r.Down {
		t.Errorf("sent %v", r)
	}
	for _, end := range []string{"", ":eth1", "a:"} {
		env.wantError(2, "names no end of a link", "link", "set", "triangle", "ab", end, "--down")
	}
}

func TestGraphOfNetworkAndFileAgree(t *testing.T) {
	f, env := startFake(t)
	file := env.file("t.yaml", triangle)
	v, err := env.load(file)
	if err != nil {
		t.Fatal(err)
	}
	f.vnets["triangle"] = wire.ToProto(v)
	for _, format := range []string{"dot", "svg", "mermaid"} {
		if env.run("graph", "triangle", "-o", format) != 0 {
			t.Fatal(env.err.String())
		}
		running := env.out.String()
		if env.run("graph", file, "-o", format) != 0 {
			t.Fatal(env.err.String())
		}
		if running != env.out.String() || running == "" {
			t.Errorf("%s of the running network differs from that of its file", format)
		}
	}
	svg := filepath.Join(env.RunDir, "t.svg")
	env.want(0, "", "graph", file, "-w", svg)
	text, err := os.ReadFile(svg)
	if err != nil || !bytes.HasPrefix(text, []byte("<svg ")) {
		t.Errorf("the file begins with %.20q: %v", text, err)
	}
}

func TestFilesNeedNoService(t *testing.T) {
	env := newTestEnv(t)
	file := env.file("t.yaml", triangle)
	env.want(0, file+": valid: triangle, 3 nodes, 3 links\n", "validate", file)
	if env.run("convert", file, "-o", "yaml") != 0 {
		t.Fatal(env.err.String())
	}
	env.Stdin = strings.NewReader(env.out.String())
	env.want(0, "-: valid: triangle, 3 nodes, 3 links\n", "validate", "-")
	if got := env.run("version", "-o", "json"); got != 0 || !strings.Contains(env.out.String(), `"version"`) || strings.Contains(env.out.String(), "service") {
		t.Errorf("version: status %d, %s%s", got, env.out.String(), env.err.String())
	}
	bad := env.file("bad.yaml", "name: [\n")
	if got := env.run("validate", "-o", "json", file, bad); got != 2 {
		t.Errorf("status %d, want 2", got)
	}
	var results []validResult
	if err := json.Unmarshal(env.out.Bytes(), &results); err != nil || len(results) != 2 || !results[0].Valid || results[1].Valid || results[1].Error == "" {
		t.Errorf("%v: %+v", err, results)
	}
}

// Pairs that have failed alike are one line, however many there are.
func TestPingPutsFailuresTogether(t *testing.T) {
	r := &pingResult{}
	for _, to := range []string{"b", "c", "d", "e", "f"} {
		for _, family := range []string{"ipv4", "ipv6"} {
			r.Failed = append(r.Failed, pingFailure{"a", to, family, "not tried: host2 has vanished"})
		}
	}
	r.Failed = append(r.Failed, pingFailure{"b", "a", "ipv4", "no reply"}, pingFailure{"b", "c", "ipv6", "no reply"})
	var b bytes.Buffer
	r.table(&b, nil)
	want := `: 0 of 0 pairs reachable

FROM  TO                FAMILY     REASON
a     b c d and 2 more  ipv4 ipv6  not tried: host2 has vanished
b     a                 ipv4       no reply
b     c                 ipv6       no reply
`
	if b.String() != want {
		t.Errorf("got\n%swant\n%s", b.String(), want)
	}
}
