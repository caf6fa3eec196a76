package cli

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"

	trellisv1 "trellis/api/trellis/v1"
)

func TestProgressOffATerminal(t *testing.T) {
	_, env := startFake(t)
	if got := env.run("up", env.file("t.yaml", triangle)); got != 0 {
		t.Fatal(env.err.String())
	}
	var phases []string
	for line := range strings.Lines(env.err.String()) {
		if strings.ContainsAny(line, "\r\x1b") {
			t.Errorf("a line for a terminal: %q", line)
		}
		phases = append(phases, strings.Fields(line)[0])
	}
	if got := strings.Join(phases, " "); got != "triangle: trellis: admitted creating converging" {
		t.Errorf("printed %q; each phase should have its line", env.err.String())
	}
}

// Off a terminal a long phase is told of every few seconds, not at every step.
func TestPlainProgressIsRare(t *testing.T) {
	var b bytes.Buffer
	p := newProgress(&b)
	now := p.start
	p.now = func() time.Time { return now }
	for i := range int32(100) {
		p.update(&trellisv1.Progress{Phase: "creating", Done: i, Total: 100, Detail: "node\nx"})
		now = now.Add(time.Second)
	}
	p.finish()
	if got := strings.Count(b.String(), "\n"); got != 20 {
		t.Errorf("%d lines in 100 seconds, want 20", got)
	}
	if first, _, _ := strings.Cut(b.String(), "\n"); first != "creating 0/100 (0.00s): node x" {
		t.Errorf("the first line is %q", first)
	}
}

func TestProgressOnATerminal(t *testing.T) {
	t.Setenv("TERM", "xterm")
	ptmx, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer ptmx.Close()
	if err := pty.Setsize(ptmx, &pty.Winsize{Rows: 24, Cols: 60}); err != nil {
		t.Fatal(err)
	}
	seen := make(chan string, 1)
	go func() {
		var b bytes.Buffer
		_, _ = b.ReadFrom(ptmx) // ends with an error when the other end is closed
		seen <- b.String()
	}()
	p := newProgress(tty)
	p.update(&trellisv1.Progress{Phase: "creating", Done: 6, Total: 12, Detail: strings.Repeat("a long detail ", 20)})
	time.Sleep(3 * progressTick) // the clock goes on by itself
	p.note("something happened")
	p.update(&trellisv1.Progress{Phase: "converging", Done: 12, Total: 12})
	p.finish()
	p.finish()
	if err := tty.Close(); err != nil {
		t.Fatal(err)
	}
	text := <-seen
	if !strings.Contains(text, "creating   [============            ] 6/12 ") {
		t.Errorf("no bar in %q", text)
	}
	if !strings.Contains(text, "\r\x1b[Ksomething happened\r\n") {
		t.Errorf("the note is not on a line of its own: %q", text)
	}
	if !strings.HasSuffix(text, "\r\x1b[K") {
		t.Errorf("the line was not taken away: %q", text)
	}
	if draws := strings.Count(text, "creating"); draws < 2 {
		t.Errorf("drawn %d times, want again and again", draws)
	}
	for part := range strings.SplitSeq(text, "\r") {
		if line, _, _ := strings.Cut(part, "\x1b"); len([]rune(line)) > 59 {
			t.Errorf("a line of %d columns wraps: %q", len([]rune(line)), line)
		}
	}
}

func TestSeconds(t *testing.T) {
	for d, want := range map[time.Duration]string{
		1234 * time.Millisecond: "1.23s", 12340 * time.Millisecond: "12.3s", 83 * time.Second: "1m23s", 2 * time.Hour: "2h0m0s",
	} {
		if got := seconds(d); got != want {
			t.Errorf("%s is written %s, want %s", d, got, want)
		}
	}
}
