package attack

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"trellis/internal/bench"
	"trellis/internal/substrate/kernel"
)

// What an attacker's node may have.
const (
	attackerCPU    = 0.25     // cores
	attackerMemory = 64 << 20 // bytes
)

// What an attack that is held costs the others at the most.
const (
	leastRate    = 0.9              // of the victim's rate, one second after the start
	longestVerb  = time.Second      // for `trellis ls`
	memoryOver   = 1.05             // of the node's limit
	memoryNoise  = 16 << 20         // bytes by which the kernel's memory varies by itself
	longestUp    = 10 * time.Second // for a network of two nodes
	sampleEvery  = 30 * time.Millisecond
	settled      = 4 // samples for which memory is taken that counts as lost
	commandLimit = 30 * time.Second
)

// What ends an attack that is not held, so that the machine survives it.
const (
	mostMemory = 1536 << 20 // bytes by which the kernel's memory has grown
	leastFree  = 512 << 20  // bytes that the machine has left
)

// Config says what to try.
type Config struct {
	Program string // the trellis program
	Address string // of its service
	Attacks []Attack
	Seconds int // that each attack lasts
	// Progress is called before each attack, with the number of those done.
	Progress func(done, total int, name string)
}

// Result is what one attack cost the others.
type Result struct {
	Attack string `json:"attack"`
	What   string `json:"what"`
	// Memory is by how much the kernel's own memory grew at the most, for a tenth of a
	// second at least, bytes.
	Memory int64 `json:"memory"`
	// Limit is what the nodes that attack may have together, bytes.
	Limit int64 `json:"limit"`
	// Charged is what the attacker's cgroups are charged with at the end, bytes.
	Charged int64 `json:"charged"`
	// Rate of the victim's TCP stream, bit/s: beside nodes that spin, within their
	// limits, before the attack and after it; and from one second after its start on.
	RateBefore float64 `json:"rateBefore"`
	RateDuring float64 `json:"rateDuring"`
	RateAfter  float64 `json:"rateAfter"`
	// Verb is the longest that `trellis ls` took, seconds.
	Verb float64 `json:"verb"`
	// Up is what a network of two nodes took to come up meanwhile, seconds.
	Up float64 `json:"up"`
	// Ended tells that the attack was ended before its time, lest the machine have no
	// memory left.
	Ended bool `json:"ended,omitempty"`
	// Failed names what other networks could not have meanwhile.
	Failed []string `json:"failed,omitempty"`
	// Told is what `trellis show` says of the attacker's nodes.
	Told string `json:"told,omitempty"`
	// NotHeld says in what the attack was not held; empty: it was.
	NotHeld []string `json:"notHeld,omitempty"`
}

// Report is what all attacks cost.
type Report struct {
	Machine bench.Machine `json:"machine"`
	Seconds int           `json:"seconds"`
	// The attacker's limits.
	CPU     float64  `json:"cpu"`
	Limit   int64    `json:"memory"`
	Results []Result `json:"results"`
}

const victim = "name: bench-victim\nrouting: static\nnodes: {a: {}, b: {}}\nlinks:\n  - endpoints: [{node: a, interface: eth1, addresses: [192.0.2.1/24]}, {node: b, interface: eth1, addresses: [192.0.2.2/24]}]\n"

const bystander = "name: bench-bystander\nrouting: static\nnodes: {a: {}, b: {}}\nlinks: [[a, b]]\n"

// network is one of the attacker's.
type network struct {
	name, text string
	nodes      []string // that attack
}

// networks describes those of an attack.
func (a Attack) networks() (all []network) {
	const head = "name: %s\nrouting: static\ndefaults: {node: {cpu: %g, memory: %dMiB, disk: 16MiB, pids: 512}}\n"
	const name = "bench-attacker"
	if a.nodes <= 2 {
		// Two links between the same two, which may be bridged.
		return []network{{name: name, nodes: []string{"m", "n"}[:max(1, a.nodes)], text: fmt.Sprintf(head, name, attackerCPU, attackerMemory>>20) + `nodes: {m: {}, n: {}}
links:
  - name: wire
    endpoints: [{node: m, interface: eth1}, {node: n, interface: eth1}]
  - name: seg
    type: lan
    endpoints: [{node: m, interface: lan0}, {node: n, interface: lan0}]
`}}
	}
	for first := 0; first < a.nodes; first += networkNodes {
		n := network{name: fmt.Sprintf("%s-%d", name, 1+len(all))}
		var nodes, ends []string
		for i := range min(networkNodes, a.nodes-first) {
			node := fmt.Sprintf("m%d", i)
			n.nodes = append(n.nodes, node)
			nodes = append(nodes, node+": {}")
			ends = append(ends, fmt.Sprintf("{node: %s, interface: lan0}", node))
		}
		n.text = fmt.Sprintf(head, n.name, attackerCPU, attackerMemory>>20) + fmt.Sprintf("nodes: {%s}\nlinks:\n  - name: seg\n    type: lan\n    endpoints: [%s]\n",
			strings.Join(nodes, ", "), strings.Join(ends, ", "))
		all = append(all, n)
	}
	return all
}

// networkNodes is how many nodes a network of an attack by many has.
const networkNodes = 5

// Run tries the attacks one after the other.
func Run(ctx context.Context, c Config) (r Report, err error) {
	if _, err := exec.LookPath("python3"); err != nil {
		return r, errors.New("the attacks are Python programs, which run in nodes of the image host: install python3")
	}
	if r.Machine, err = bench.ReadMachine(ctx); err != nil {
		return r, err
	}
	r.Seconds, r.CPU, r.Limit = c.Seconds, attackerCPU, attackerMemory
	dir, err := os.MkdirTemp("", "trellis-attack-")
	if err != nil {
		return r, err
	}
	defer os.RemoveAll(dir)
	t := &trial{Config: c, dir: dir}
	texts := map[string]string{"victim": victim, "bystander": bystander}
	for _, a := range c.Attacks {
		for _, n := range a.networks() {
			texts[n.name] = n.text
		}
	}
	for name, text := range texts {
		if err := os.WriteFile(t.file(name), []byte(text), 0o600); err != nil {
			return r, err
		}
	}
	if _, err := t.trellis(ctx, "up", t.file("victim")); err != nil {
		return r, err
	}
	stop, err := t.receive(ctx)
	if err != nil {
		return r, err
	}
	defer stop()
	for i, a := range c.Attacks {
		c.Progress(i, len(c.Attacks), a.Name)
		res, err := t.try(ctx, a)
		if err != nil {
			return r, fmt.Errorf("%s: %w", a.Name, err)
		}
		r.Results = append(r.Results, res)
	}
	c.Progress(len(c.Attacks), len(c.Attacks), "")
	_, err = t.trellis(ctx, "down", "bench-victim")
	return r, err
}

// trial is the victim and the attackers' descriptions.
type trial struct {
	Config
	dir       string
	attackers []string // the attacker's networks that are up
}

func (t *trial) file(name string) string { return filepath.Join(t.dir, name+".yaml") }

func (t *trial) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, t.Program, append([]string{"--address", t.Address}, args...)...)
	cmd.WaitDelay = time.Second
	return cmd
}

// trellis runs a verb and gives what it prints.
func (t *trial) trellis(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, commandLimit, fmt.Errorf("it takes more than %s", commandLimit))
	defer cancel()
	cmd := t.command(ctx, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return "", fmt.Errorf("trellis %s: %w: %s", strings.Join(args[:min(2, len(args))], " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return stdout.String(), nil
}

// start begins a program in a node, which runs until it ends by itself or the returned
// function is called.
func (t *trial) start(ctx context.Context, node string, argv []string) (*exec.Cmd, func(), error) {
	ctx, cancel := context.WithCancel(ctx)
	cmd := t.command(ctx, append([]string{"exec", node, "--"}, argv...)...)
	if err := cmd.Start(); err != nil {
		cancel()
		return nil, nil, err
	}
	return cmd, func() {
		cancel()
		_ = cmd.Wait() // an attacker's node may well have been killed
	}, nil
}

// receive starts what the victim's stream goes to.
func (t *trial) receive(ctx context.Context) (stop func(), err error) {
	argv, err := command("probes/receive.py", 0)
	if err != nil {
		return nil, err
	}
	_, stop, err = t.start(ctx, "bench-victim/b", argv)
	if err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(commandLimit); ; time.Sleep(sampleEvery) {
		if _, err = t.rate(ctx, 0.01); err == nil {
			return stop, nil
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			stop()
			return nil, fmt.Errorf("nobody receives in the victim's node: %w", err)
		}
	}
}

// rate measures the victim's stream, in bit/s.
func (t *trial) rate(ctx context.Context, seconds float64) (float64, error) {
	argv, err := command("probes/send.py", 0)
	if err != nil {
		return 0, err
	}
	out, err := t.trellis(ctx, append(append([]string{"exec", "bench-victim/a", "--"}, argv...), "192.0.2.2", fmt.Sprint(seconds))...)
	if err != nil {
		return 0, err
	}
	bytes, err := strconv.ParseFloat(strings.TrimSpace(out), 64)
	return 8 * bytes, err
}

// try brings the attacker up, measures without and with the attack, and takes it down.
func (t *trial) try(ctx context.Context, a Attack) (r Result, err error) {
	networks := a.networks()
	var nodes []string
	for _, n := range networks {
		for _, node := range n.nodes {
			nodes = append(nodes, n.name+"/"+node)
		}
	}
	r = Result{Attack: a.Name, What: a.What, Limit: int64(len(nodes)) * attackerMemory}
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), commandLimit)
		defer cancel()
		err = errors.Join(err, t.down(end))
	}()
	if err := t.up(ctx, networks); err != nil {
		return r, err
	}
	if r.RateBefore, err = t.beside(ctx, nodes); err != nil {
		return r, err
	}
	if err := t.attack(ctx, a, networks, nodes, &r); err != nil {
		return r, err
	}
	// In new nodes: the attacker's may be frozen, or down.
	if err := errors.Join(t.down(ctx), t.up(ctx, networks)); err != nil {
		return r, err
	}
	if r.RateAfter, err = t.beside(ctx, nodes); err != nil {
		return r, err
	}
	r.judge()
	return r, nil
}

// up brings the attacker's networks up.
func (t *trial) up(ctx context.Context, networks []network) error {
	for _, n := range networks {
		t.attackers = append(t.attackers, n.name)
		if _, err := t.trellis(ctx, "up", t.file(n.name)); err != nil {
			return err
		}
	}
	return nil
}

// down takes them down.
func (t *trial) down(ctx context.Context) (err error) {
	for _, name := range t.attackers {
		_, e := t.trellis(ctx, "down", name)
		err = errors.Join(err, e)
	}
	t.attackers = nil
	return err
}

// beside measures the victim's stream while nodes spin.
func (t *trial) beside(ctx context.Context, nodes []string) (float64, error) {
	spin, err := command("probes/spin.py", 3600)
	if err != nil {
		return 0, err
	}
	for _, node := range nodes {
		_, stop, err := t.start(ctx, node, spin)
		if err != nil {
			return 0, err
		}
		defer stop()
	}
	return t.rate(ctx, 2)
}

// attack has the nodes attack, and measures what that costs.
func (t *trial) attack(ctx context.Context, a Attack, networks []network, nodes []string, r *Result) error {
	before, _, err := taken()
	if err != nil {
		return err
	}
	attack, cancel := context.WithCancel(ctx)
	defer cancel()
	for i, node := range nodes {
		argv, err := a.command(i, t.Seconds)
		if err != nil {
			return err
		}
		_, stop, err := t.start(attack, node, argv)
		if err != nil {
			return err
		}
		defer stop()
	}
	var all, ending sync.WaitGroup
	defer all.Wait()
	var broken error // in ending the attack
	watch, stopWatching := context.WithCancel(ctx)
	defer stopWatching()
	all.Go(func() {
		var last [settled]int64
		for i := 0; watch.Err() == nil; i++ {
			if used, free, err := taken(); err == nil {
				last[i%settled] = used - before
				r.Memory = max(r.Memory, slices.Min(last[:]))
				if !r.Ended && (r.Memory > mostMemory || free < leastFree) {
					r.Ended = true
					cancel()
					ending.Go(func() { broken = t.down(ctx) })
				}
			}
			time.Sleep(sampleEvery)
		}
	})
	var verbs sync.WaitGroup
	verbs.Go(func() {
		for watch.Err() == nil {
			start := time.Now()
			if _, err := t.trellis(watch, "ls"); err == nil || watch.Err() == nil {
				r.Verb = max(r.Verb, time.Since(start).Seconds())
			}
			time.Sleep(10 * sampleEvery)
		}
	})
	time.Sleep(time.Second)
	seconds := max(1, float64(t.Seconds)-3)
	if r.RateDuring, err = t.rate(ctx, seconds); err != nil {
		r.Failed = append(r.Failed, "the victim's stream: "+err.Error())
	}
	t.others(ctx, r)
	stopWatching()
	verbs.Wait()
	all.Wait()
	ending.Wait()
	if !r.Ended {
		for _, n := range networks {
			t.charged(ctx, n.name, r)
		}
	}
	return errors.Join(broken, ctx.Err())
}

// taken tells what the kernel takes of the machine's memory, and what is left, bytes.
func taken() (used, left int64, err error) {
	m, err := kernel.ReadMemory()
	if err != nil {
		return 0, 0, err
	}
	free, err := kernel.ReadFreeLists()
	return m.Kernel - free, m.Free, err
}

// others tries what other networks need, while the attack lasts.
func (t *trial) others(ctx context.Context, r *Result) {
	probe, err := command("probes/probe.py", 0)
	if err == nil {
		var out string
		if out, err = t.trellis(ctx, append([]string{"exec", "bench-victim/a", "--"}, probe...)...); err == nil {
			r.Failed = append(r.Failed, strings.FieldsFunc(out, func(c rune) bool { return c == '\n' })...)
		}
	}
	if err != nil {
		r.Failed = append(r.Failed, err.Error())
	}
	start := time.Now()
	if _, err := t.trellis(ctx, "up", t.file("bystander")); err != nil {
		r.Failed = append(r.Failed, err.Error())
	}
	r.Up = time.Since(start).Seconds()
	if _, err := t.trellis(ctx, "down", "bench-bystander"); err != nil {
		r.Failed = append(r.Failed, err.Error())
	}
}

// charged reads what the attacker's nodes are charged with, and what is said of them.
func (t *trial) charged(ctx context.Context, network string, r *Result) {
	out, err := t.trellis(ctx, "show", network, "-o", "json")
	if err != nil {
		r.Failed = append(r.Failed, err.Error())
		return
	}
	var shown struct {
		Nodes []struct {
			Name, Message string
			Memory        int64
		}
	}
	if err := json.Unmarshal([]byte(out), &shown); err != nil {
		r.Failed = append(r.Failed, err.Error())
		return
	}
	var told []string
	for _, n := range shown.Nodes {
		r.Charged += n.Memory
		if n.Message != "" {
			told = append(told, n.Name+": "+n.Message)
		}
	}
	if r.Told != "" {
		told = append([]string{r.Told}, told...)
	}
	r.Told = strings.Join(told, "; ")
}

// Kept is the part of the victim's rate, before or after the attack, whichever was lower,
// that it had during it.
func (r *Result) Kept() float64 { return r.RateDuring / max(1, min(r.RateBefore, r.RateAfter)) }

// judge says in what an attack was not held.
func (r *Result) judge() {
	note := func(bad bool, format string, args ...any) {
		if bad {
			r.NotHeld = append(r.NotHeld, fmt.Sprintf(format, args...))
		}
	}
	note(float64(r.Memory) > memoryOver*float64(r.Limit)+memoryNoise, "the machine lost %d MiB to nodes of %d MiB together", r.Memory>>20, r.Limit>>20)
	note(r.Ended, "it was ended, lest the machine have no memory left")
	note(r.Kept() < leastRate, "the victim kept %.0f %% of its rate", 100*r.Kept())
	note(r.Verb > longestVerb.Seconds(), "`trellis ls` took %.1f s", r.Verb)
	note(r.Up > longestUp.Seconds(), "a network of two nodes took %.1f s to come up", r.Up)
	note(len(r.Failed) > 0, "others could not have: %s", strings.Join(r.Failed, ", "))
}
