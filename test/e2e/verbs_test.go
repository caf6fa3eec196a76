package e2e

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"trellis/test/testenv"
)

// TestVerbs uses the verbs that look at a running network, on one of them.
func TestVerbs(t *testing.T) {
	t.Parallel()
	s := testenv.StartService(t, testenv.Options{})
	file := write(t, "v.yaml", `name: v
routing: static
nodes:
  a: {memory: 64MiB, env: {COLOUR: green}}
  b: {}
  c: {}
links:
  - {name: ab, endpoints: [a, b], rate: 50mbit}
  - {name: seg, type: lan, endpoints: [a, b, c]}
`)
	s.Must("up", file)

	t.Run("ls", func(t *testing.T) {
		all := decode[[]map[string]any](t, s.Must("ls", "-o", "json"))
		if len(all) != 1 {
			t.Fatalf("%d networks: %v", len(all), all)
		}
		for key, want := range map[string]any{"name": "v", "state": "running", "nodes": 3.0, "nodesUp": 3.0, "links": 2.0, "routing": "static"} {
			if all[0][key] != want {
				t.Errorf("%s is %v, want %v", key, all[0][key], want)
			}
		}
		if _, err := time.Parse(time.RFC3339, fmt.Sprint(all[0]["created"])); err != nil {
			t.Error(err)
		}
		if out := s.Must("ls"); !strings.Contains(out, "running") {
			t.Errorf("the table: %s", out)
		}
	})

	t.Run("show", func(t *testing.T) {
		v := decode[map[string]any](t, s.Must("show", "v", "-o", "json"))
		mustHaveKeys(t, v, "name", "state", "routing", "created", "nodes", "links")
		one := decode[map[string]any](t, s.Must("show", "v/a", "-o", "json"))
		mustHaveKeys(t, one, "vnet", "name", "state", "host", "pid", "restarts", "memory", "cpuSeconds", "image", "routing", "loopbacks", "limits", "services", "interfaces")
		mustHaveKeys(t, one["limits"], "cpu", "memory", "pids", "disk")
		ends, _ := one["interfaces"].([]any)
		if len(ends) != 2 {
			t.Fatalf("the interfaces are %v", one["interfaces"])
		}
		mustHaveKeys(t, ends[0], "node", "name", "link", "mac", "mtu", "addrs", "shape", "device", "rxPackets", "rxBytes", "txPackets", "txBytes", "drops")
		if _, stderr, code := s.Trellis("show", "nobody"); code != 1 || !strings.Contains(stderr, "nobody") {
			t.Errorf("show of what is not there: exit status %d, %s", code, stderr)
		}
		if _, stderr, code := s.Trellis("show", "v/nobody"); code != 1 || !strings.Contains(stderr, "nobody") {
			t.Errorf("show of a node that is not there: exit status %d, %s", code, stderr)
		}
	})

	t.Run("exec", func(t *testing.T) {
		for _, c := range []struct {
			command string
			code    int
		}{{"true", 0}, {"exit 3", 3}, {"kill -9 $$", 137}, {"kill -TERM $$", 143}, {"exit 255", 255}, {"no-such-command", 127}} {
			if _, stderr, code := s.Trellis("exec", "v/a", "--", "sh", "-c", c.command); code != c.code {
				t.Errorf("%q gives %d, want %d: %s", c.command, code, c.code, stderr)
			}
		}
		if _, stderr, code := s.Trellis("exec", "v/a", "--", "/no/such/program"); code == 0 || !strings.Contains(stderr, "/no/such/program") {
			t.Errorf("a program that is not there: exit status %d, %s", code, stderr)
		}
		if out := s.Must("exec", "-e", "X=1 2", "v/a", "sh", "-c", `echo "$COLOUR $X"`); out != "green 1 2\n" {
			t.Errorf("the variables are %q", out)
		}
		stdout, stderr, _ := s.Trellis("exec", "v/a", "--", "sh", "-c", "echo out; echo err >&2")
		if stdout != "out\n" || stderr != "err\n" {
			t.Errorf("standard output %q, standard error %q", stdout, stderr)
		}
		// Streams of any length and content, both ways.
		in := bytes.Repeat([]byte{0, 1, 2, '\r', '\n', 0xff, 'x', 4}, 1<<17)
		var out bytes.Buffer
		cmd := s.Command(t.Context(), "exec", "v/a", "--", "cat")
		cmd.Stdin, cmd.Stdout = bytes.NewReader(in), &out
		if err := s.NS.Start(cmd); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil || !bytes.Equal(in, out.Bytes()) {
			t.Errorf("cat gives %d bytes of %d back, %v", out.Len(), len(in), err)
		}
		begin := time.Now()
		if _, _, code := s.Trellis("exec", "-n", "--timeout", "300ms", "v/a", "sleep", "30"); code == 0 || time.Since(begin) > 5*time.Second {
			t.Errorf("--timeout 300ms: exit status %d after %v", code, time.Since(begin))
		}
		eventually(t, 20*time.Second, "the command has ended after its timeout", func() bool {
			return strings.TrimSpace(s.Must("exec", "v/a", "--", "sh", "-c", "ps ax | grep -c '[s]leep 30' || true")) == "0"
		})
	})

	t.Run("capture", func(t *testing.T) {
		testenv.NeedCommand(t, "tcpdump")
		pcap := filepath.Join(t.TempDir(), "a.pcap")
		var errs bytes.Buffer
		cmd := s.Command(t.Context(), "capture", "v/a:eth1", "-w", pcap)
		cmd.Stderr = &errs
		if err := s.NS.Start(cmd); err != nil {
			t.Fatal(err)
		}
		// The file has its header once the capture runs.
		eventually(t, 20*time.Second, "the capture begins", func() bool {
			st, err := os.Stat(pcap)
			return err == nil && st.Size() >= 24
		})
		s.Must("exec", "v/a", "--", "ping", "-c3", "-i0.05", "-I", "eth1", "-s", "777", ends(t, s, "v", "b", "eth1"))
		eventually(t, 20*time.Second, "the three and their answers are in the file", func() bool {
			out, _ := exec.Command("tcpdump", "-n", "-r", pcap, "icmp").Output() // the last frame may not be whole yet
			return bytes.Count(out, []byte("ICMP echo")) >= 6
		})
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("an interrupted capture ends with %v: %s", err, errs.String())
		}
		text := testenv.Run(t, exec.Command("tcpdump", "-n", "-r", pcap, "icmp"))
		if q, a := strings.Count(text, "echo request"), strings.Count(text, "echo reply"); q != 3 || a != 3 {
			t.Errorf("%d requests and %d replies of 3 are in the capture:\n%s", q, a, text)
		}
		if !strings.Contains(text, "length 785") {
			t.Errorf("the frames are not whole:\n%s", text)
		}
		for target, code := range map[string]int{"v/a:eth9": 1, "v/x:eth1": 1, "x/a:eth1": 1, "v/a": 2} {
			if _, stderr, got := s.Trellis("capture", target, "-w", filepath.Join(t.TempDir(), "x"), "--timeout", "2s"); got != code {
				t.Errorf("capture %s: exit status %d, want %d: %s", target, got, code, stderr)
			}
		}
	})

	t.Run("graph", func(t *testing.T) {
		svg := s.Must("graph", "v", "-o", "svg")
		d := xml.NewDecoder(strings.NewReader(svg))
		for {
			if _, err := d.Token(); err == io.EOF {
				break
			} else if err != nil {
				t.Fatalf("the drawing is no XML: %v", err)
			}
		}
		for _, want := range []string{"<svg", ">a<", ">b<", ">c<"} {
			if !strings.Contains(svg, want) {
				t.Errorf("the drawing has no %s", want)
			}
		}
		if out := s.Must("graph", "v", "-o", "dot"); !strings.Contains(out, "graph") || !strings.Contains(out, "--") {
			t.Errorf("dot: %s", out)
		}
		if out := s.Must("graph", file, "-o", "mermaid"); !strings.Contains(out, "---") {
			t.Errorf("mermaid: %s", out)
		}
	})

	t.Run("link set", func(t *testing.T) {
		at := func() string {
			v := show(t, s, "v")
			return testenv.Run(t, s.NS.Command("tc", "qdisc", "show", "dev", v.device(t, "b", "eth1")))
		}
		s.Must("link", "set", "v", "ab", "--rate", "5mbit")
		if out := at(); !strings.Contains(out, "5Mbit") {
			t.Errorf("after link set --rate 5mbit the qdisc is %s", out)
		}
		s.Must("link", "set", "v", "ab", "--rate", "none")
		if out := at(); strings.Contains(out, "tbf") {
			t.Errorf("after link set --rate none the qdisc is %s", out)
		}
		l := decode[struct{ Name, State string }](t, s.Must("link", "set", "v", "ab", "--down", "-o", "json"))
		if l.Name != "ab" || l.State != "down" {
			t.Errorf("link set --down says %+v", l)
		}
		for _, args := range [][]string{{"ab", "--up", "--down"}, {"ab"}, {"ab", "--rate", "5"}, {"ab", "--rate", "0"}} {
			if _, stderr, code := s.Trellis(append([]string{"link", "set", "v"}, args...)...); code != 2 {
				t.Errorf("link set %v: exit status %d: %s", args, code, stderr)
			}
		}
		if _, stderr, code := s.Trellis("link", "set", "v", "nolink", "--up"); code != 1 || !strings.Contains(stderr, "nolink") {
			t.Errorf("link set of an unknown link: exit status %d: %s", code, stderr)
		}
		// The next up puts the file in force again.
		s.Must("up", file)
		if out := at(); !strings.Contains(out, "50Mbit") {
			t.Errorf("after up the qdisc is %s", out)
		}
		s.Must("ping", "v")
	})

	t.Run("ping", func(t *testing.T) {
		all := decode[map[string]any](t, s.Must("ping", "v", "-o", "json"))
		mustHaveKeys(t, all, "vnet", "pairs", "reachable", "failed", "rtt")
		if failed, ok := all["failed"].([]any); !ok || len(failed) != 0 || all["pairs"] != 12.0 || all["reachable"] != 12.0 {
			t.Errorf("ping says %v", all)
		}
		some := decode[ping](t, s.Must("ping", "v", "--sample", "2", "--seed", "7", "-o", "json"))
		if some.Pairs != 4 || some.Reachable != 4 { // of two pairs, both families
			t.Errorf("ping --sample 2 says %+v", some)
		}
	})

	t.Run("without a service", func(t *testing.T) {
		empty := t.TempDir()
		for _, args := range [][]string{{"ls"}, {"show", "v"}, {"exec", "v/a", "--", "true"}, {"ping", "v"}, {"capture", "v/a:eth1", "-w", filepath.Join(empty, "x")}} {
			cmd := s.Command(t.Context(), args...)
			cmd.Env = append(os.Environ(), "TRELLIS_RUN_DIR="+empty)
			out, err := cmd.CombinedOutput()
			if err == nil || cmd.ProcessState.ExitCode() != 1 || !strings.Contains(string(out), "trellis serve") {
				t.Errorf("%v: %v: %s", args, err, out)
			}
		}
	})
	s.Must("down", "-f", file)
	nothingLeft(t, s)
}

// mustHaveKeys checks the keys of a JSON object that are promised.
func mustHaveKeys(t *testing.T, object any, keys ...string) {
	t.Helper()
	o, ok := object.(map[string]any)
	if !ok {
		t.Fatalf("not an object: %v", object)
	}
	for _, k := range keys {
		if _, ok := o[k]; !ok {
			t.Errorf("there is no %q in %v", k, object)
		}
	}
}

// ends gives the IPv4 address of a node's interface.
func ends(t *testing.T, s *testenv.Service, network, node, name string) string {
	t.Helper()
	var n struct {
		Interfaces []struct {
			Name  string
			Addrs []string
		}
	}
	if err := json.Unmarshal([]byte(s.Must("show", network+"/"+node, "-o", "json")), &n); err != nil {
		t.Fatal(err)
	}
	for _, i := range n.Interfaces {
		if i.Name != name {
			continue
		}
		k := slices.IndexFunc(i.Addrs, func(a string) bool { return strings.Contains(a, ".") })
		if k >= 0 {
			addr, _, _ := strings.Cut(i.Addrs[k], "/")
			return addr
		}
	}
	t.Fatalf("%s/%s:%s has no IPv4 address", network, node, name)
	return ""
}
