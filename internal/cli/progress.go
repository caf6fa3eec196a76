package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/term"

	trellisv1 "trellis/api/trellis/v1"
)

const (
	// progressTick is how often the line on a terminal is drawn anew.
	progressTick = 100 * time.Millisecond
	// progressPlain is how often an unchanged phase is told off a terminal.
	progressPlain = 5 * time.Second
	// barWidth is the width of the bar, in columns.
	barWidth = 24
)

// progress tells how far a verb has come: on a terminal by one line that is
// drawn over, elsewhere by a line for each phase and then every few seconds.
type progress struct {
	w     io.Writer
	tty   bool
	width func() int // columns of the terminal
	now   func() time.Time

	mu      sync.Mutex
	start   time.Time
	at      state
	shown   bool      // a line is on the terminal
	written time.Time // when the last plain line was written
	done    chan struct{}
	idle    sync.WaitGroup
}

// state is what the line says.
type state struct {
	phase       string
	done, total int
	detail      string
}

// terminal returns the file behind w where that is a terminal, else nil.
func terminal(w any) *os.File {
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return f
	}
	return nil
}

// newProgress starts telling the progress on w. finish must be called.
func newProgress(w io.Writer) *progress {
	p := &progress{w: w, now: time.Now, start: time.Now(), done: make(chan struct{})}
	f := terminal(w)
	if f == nil || os.Getenv("TERM") == "dumb" {
		return p
	}
	p.tty = true
	p.width = func() int {
		if columns, _, err := term.GetSize(int(f.Fd())); err == nil && columns > 0 {
			return columns
		}
		return 80
	}
	p.idle.Go(func() {
		tick := time.NewTicker(progressTick)
		defer tick.Stop()
		for {
			select {
			case <-p.done:
				return
			case <-tick.C:
				p.mu.Lock()
				p.draw()
				p.mu.Unlock()
			}
		}
	})
	return p
}

// update takes what the service says.
func (p *progress) update(m *trellisv1.Progress) {
	p.mu.Lock()
	defer p.mu.Unlock()
	next := state{m.GetPhase(), int(m.GetDone()), int(m.GetTotal()), oneLine(m.GetDetail())}
	changed := next.phase != p.at.phase
	p.at = next
	if p.tty {
		p.draw()
		return
	}
	if now := p.now(); changed || now.Sub(p.written) >= progressPlain {
		p.written = now
		fmt.Fprintf(p.w, "%s\n", next.plain(now.Sub(p.start)))
	}
}

// note writes a line of its own between the drawings.
func (p *progress) note(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
	fmt.Fprintf(p.w, format+"\n", args...)
}

// finish takes the line away and stops.
func (p *progress) finish() {
	p.mu.Lock()
	select {
	case <-p.done:
		p.mu.Unlock()
		return
	default:
		close(p.done)
	}
	p.clear()
	p.mu.Unlock()
	p.idle.Wait()
}

func (p *progress) clear() {
	if p.shown {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.shown = false
	}
}

// draw writes the line over the one before. The caller holds the lock.
func (p *progress) draw() {
	if p.at.phase == "" {
		return
	}
	select {
	case <-p.done:
		return
	default:
	}
	fmt.Fprint(p.w, "\r"+p.at.line(p.now().Sub(p.start), p.width()-1)+"\x1b[K")
	p.shown = true
}

// line gives the state for a terminal, in at most width columns: a line that
// wraps could not be drawn over.
func (s state) line(elapsed time.Duration, width int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-10s ", s.phase)
	if s.total > 0 {
		full := barWidth * min(s.done, s.total) / s.total
		b.WriteString("[" + strings.Repeat("=", full) + strings.Repeat(" ", barWidth-full) + "] ")
		fmt.Fprintf(&b, "%d/%d ", s.done, s.total)
	}
	b.WriteString(seconds(elapsed))
	if s.detail != "" {
		b.WriteString("  " + s.detail)
	}
	return clip(b.String(), width)
}

// plain gives the state for a log.
func (s state) plain(elapsed time.Duration) string {
	var b strings.Builder
	b.WriteString(s.phase)
	if s.total > 0 {
		fmt.Fprintf(&b, " %d/%d", s.done, s.total)
	}
	fmt.Fprintf(&b, " (%s)", seconds(elapsed))
	if s.detail != "" {
		b.WriteString(": " + s.detail)
	}
	return b.String()
}

// seconds writes a duration as people read it off a stop-watch.
func seconds(d time.Duration) string {
	switch {
	case d < 10*time.Second:
		return fmt.Sprintf("%.2fs", d.Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	}
	return d.Round(time.Minute).String()
}

// clip cuts s to width columns.
func clip(s string, width int) string {
	if width < 1 || utf8.RuneCountInString(s) <= width {
		return s
	}
	r := []rune(s)
	if width == 1 {
		return "…"
	}
	return string(r[:width-1]) + "…"
}

// oneLine takes control characters out of text that comes from elsewhere, so
// that it can neither break the line nor steer the terminal.
func oneLine(s string) string {
	return strings.Join(strings.FieldsFunc(s, func(r rune) bool {
		return r < 0x20 || r == 0x7f || (r >= 0x80 && r < 0xa0)
	}), " ")
}
