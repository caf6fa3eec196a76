package vnet

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

func TestRates(t *testing.T) {
	for in, want := range map[string]uint64{
		"1000bit": 1000, "10kbit": 10_000, "100mbit": 100_000_000, "1.5gbit": 1_500_000_000, "2tbit": 2_000_000_000_000,
		"100 Mbit/s": 100_000_000, "1Gbps": 1_000_000_000, " 56kbps ": 56_000, "1GBIT": 1_000_000_000, "9600 bits/s": 9600,
	} {
		got, err := ParseRate(in)
		if err != nil || got != want {
			t.Errorf("%q: %d, %v; want %d", in, got, err, want)
		}
	}
	for in, want := range map[string]string{
		"":                         "does not start with a number",
		"100":                      "has no unit",
		"0":                        "has no unit",
		"0mbit":                    "outside 1kbit to 100tbit",
		"10bit":                    "outside",
		"200tbit":                  "outside",
		"-1mbit":                   "is negative",
		"1.mbit":                   "does not start with a number",
		".5mbit":                   "does not start with a number",
		"1.2.3mbit":                "does not start with a number",
		"1e3mbit":                  "unknown unit",
		"1mb":                      "unknown unit",
		"1kbytes":                  "unknown unit",
		"1.5bit":                   "not a whole number",
		"0.0001kbit":               "not a whole number",
		"99999999999999999999tbit": "too large",
		strings.Repeat("1", 2000):  "too long",
	} {
		if got, err := ParseRate(in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %d, %v; want an error with %q", clip(in), got, err, want)
		}
	}
}

func TestSizes(t *testing.T) {
	for in, want := range map[string]int64{
		"96MiB": 96 << 20, "1GB": 1e9, "1.5GiB": 3 << 29, "512 kib": 512 << 10, "4096B": 4096, "2KB": 2000, "1TiB": 1 << 40, "0B": 0,
	} {
		got, err := ParseSize(in)
		if err != nil || got != want {
			t.Errorf("%q: %d, %v; want %d", in, got, err, want)
		}
	}
	for _, in := range []string{"", "96", "96M", "-1MiB", "1.3B", "9999999TiB", "MiB"} {
		if got, err := ParseSize(in); err == nil {
			t.Errorf("%q is read as %d", in, got)
		}
	}
}

func TestLosses(t *testing.T) {
	for in, want := range map[string]float64{"0.1%": 0.001, "100%": 1, "0": 0, "0.25": 0.25, "0%": 0, "3 %": 0.03, "0.07%": 0.0007} {
		got, err := ParseLoss(in)
		if err != nil || got != want {
			t.Errorf("%q: %v, %v; want %v", in, got, err, want)
		}
	}
	for _, in := range []string{"", "1", "2", "101%", "-1%", "NaN", "inf", "5 per mille", "0x1"} {
		if got, err := ParseLoss(in); err == nil {
			t.Errorf("%q is read as %v", in, got)
		}
	}
}

func TestDelays(t *testing.T) {
	for in, want := range map[string]time.Duration{"12ms": 12 * time.Millisecond, "300us": 300 * time.Microsecond, "0": 0, "1.5 s": 1500 * time.Millisecond, "1m2s": 62 * time.Second} {
		got, err := ParseDelay(in)
		if err != nil || got != want {
			t.Errorf("%q: %v, %v; want %v", in, got, err, want)
		}
	}
	for _, in := range []string{"", "5", "-1ms", "1 fortnight", "ms"} {
		if got, err := ParseDelay(in); err == nil {
			t.Errorf("%q is read as %v", in, got)
		}
	}
}

// What is written must be read as the same value, whatever the value.
func TestFormattedValuesReadBack(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 20_000 {
		rate := MinRate + r.Uint64N(uint64(1)<<r.IntN(46)+1)
		if i%2 == 0 {
			rate -= rate % 1000
		}
		if got, err := ParseRate(FormatRate(rate)); err != nil || got != rate {
			t.Fatalf("rate %d is written %q and read %d, %v", rate, FormatRate(rate), got, err)
		}
		size := r.Int64N(int64(1) << (1 + r.IntN(62)))
		if got, err := ParseSize(FormatSize(size)); err != nil || got != size {
			t.Fatalf("size %d is written %q and read %d, %v", size, FormatSize(size), got, err)
		}
		loss := r.Float64()
		if i%3 == 0 {
			loss = math.Float64frombits(r.Uint64N(math.Float64bits(1)))
		}
		if got, err := ParseLoss(FormatLoss(loss)); err != nil || got != loss {
			t.Fatalf("loss %v is written %q and read %v, %v", loss, FormatLoss(loss), got, err)
		}
		delay := time.Duration(r.Int64N(int64(MaxDelay)))
		if got, err := ParseDelay(FormatDelay(delay)); err != nil || got != delay {
			t.Fatalf("delay %d is written %q and read %d, %v", delay, FormatDelay(delay), got, err)
		}
	}
	for want, got := range map[string]string{
		"1.5gbit": FormatRate(1_500_000_000), "155mbit": FormatRate(155_000_000), "1234.567kbit": FormatRate(1_234_567),
		"96MiB": FormatSize(96 << 20), "1000B": FormatSize(1000), "0.1%": FormatLoss(0.001), "100%": FormatLoss(1), "300us": FormatDelay(300 * time.Microsecond),
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestNearest(t *testing.T) {
	words := []string{"name", "routing", "nodes", "links", "rate", "state"}
	for in, want := range map[string]string{"routng": "routing", "node": "nodes", "Link": "links", "rtae": "rate", "topology": "", "x": ""} {
		if got := Nearest(in, words); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}
