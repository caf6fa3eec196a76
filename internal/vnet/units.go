package vnet

import (
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"time"
)

// unit is a suffix and what it multiplies by.
type unit struct {
	name   string
	factor uint64
}

// rateUnits are tc's names (tc(8), PARAMETERS), largest first. All are decimal.
var rateUnits = []unit{{"tbit", 1e12}, {"gbit", 1e9}, {"mbit", 1e6}, {"kbit", 1e3}, {"bit", 1}}

// sizeUnits are the binary units that sizes are written in, largest first.
var sizeUnits = []unit{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}}

// decimalSizes are the decimal units that sizes may be read in.
var decimalSizes = []unit{{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"KB", 1e3}}

// ParseRate reads a rate in bit/s: a number and one of bit, kbit, mbit, gbit,
// tbit (decimal, in any case), optionally followed by "/s", or the spellings
// kbps, Mbps, Gbps. All of them count bits; that is where tc differs, whose
// "bps" counts bytes. A number without a unit is an error, and so is a rate
// outside [MinRate, MaxRate].
func ParseRate(s string) (uint64, error) {
	const remedy = "write a rate like 10kbit, 100mbit or 1.5gbit"
	num, suffix, err := splitQuantity(s)
	if err != nil {
		return 0, fmt.Errorf("rate %q %w; %s", clip(s), err, remedy)
	}
	if suffix == "" {
		return 0, fmt.Errorf("rate %q has no unit; %s", clip(s), remedy)
	}
	name := strings.ToLower(suffix)
	if bits, ok := strings.CutSuffix(name, "bps"); ok {
		name = bits + "bit"
	} else if bits, ok := strings.CutSuffix(name, "/s"); ok {
		name = strings.TrimSuffix(bits, "s") // "bits/s" reads as "bit/s"
	}
	for _, u := range rateUnits {
		if u.name != name {
			continue
		}
		v, err := scale(num, u.factor)
		if err != nil {
			return 0, fmt.Errorf("rate %q %w; %s", clip(s), err, remedy)
		}
		if v < MinRate || v > MaxRate {
			return 0, fmt.Errorf("rate %q is outside %s to %s; leave the rate out for an unlimited link", clip(s), FormatRate(MinRate), FormatRate(MaxRate))
		}
		return v, nil
	}
	return 0, fmt.Errorf("rate %q has the unknown unit %q; the units are bit, kbit, mbit, gbit, tbit", clip(s), clip(suffix))
}

// FormatRate writes a rate so that ParseRate reads the same value: "1.5gbit".
func FormatRate(bps uint64) string {
	for _, u := range rateUnits {
		if bps < u.factor {
			continue
		}
		whole, rest := bps/u.factor, bps%u.factor
		if rest == 0 {
			return strconv.FormatUint(whole, 10) + u.name
		}
		if thousandth := u.factor / 1000; thousandth > 0 && rest%thousandth == 0 {
			frac := strings.TrimRight(fmt.Sprintf("%03d", rest/thousandth), "0")
			return strconv.FormatUint(whole, 10) + "." + frac + u.name
		}
	}
	return strconv.FormatUint(bps, 10) + "bit"
}

// ParseSize reads a size in bytes: a number and one of B, KB, MB, GB, TB
// (decimal) or KiB, MiB, GiB, TiB (binary), in any case. A number without a unit
// is an error.
func ParseSize(s string) (int64, error) {
	const remedy = "write a size like 96MiB or 1GB"
	num, suffix, err := splitQuantity(s)
	if err != nil {
		return 0, fmt.Errorf("size %q %w; %s", clip(s), err, remedy)
	}
	if suffix == "" {
		return 0, fmt.Errorf("size %q has no unit; %s", clip(s), remedy)
	}
	for _, list := range [][]unit{sizeUnits, decimalSizes} {
		for _, u := range list {
			if !strings.EqualFold(u.name, suffix) {
				continue
			}
			v, err := scale(num, u.factor)
			if err != nil {
				return 0, fmt.Errorf("size %q %w; %s", clip(s), err, remedy)
			}
			return int64(v), nil
		}
	}
	return 0, fmt.Errorf("size %q has the unknown unit %q; the units are B, KB, MB, GB, TB, KiB, MiB, GiB, TiB", clip(s), clip(suffix))
}

// FormatSize writes a size so that ParseSize reads the same value: "96MiB".
func FormatSize(n int64) string {
	for _, u := range sizeUnits {
		if f := int64(u.factor); n >= f && n%f == 0 {
			return strconv.FormatInt(n/f, 10) + u.name
		}
	}
	return strconv.FormatInt(n, 10) + "B"
}

// ParseLoss reads a probability: a percentage ("0.1%") or a number below 1
// ("0.001"). A bare 1 is refused, since half of those who write it mean 1%.
func ParseLoss(s string) (float64, error) {
	const remedy = "write a loss like 0.1% or 0.001"
	num, suffix, err := splitQuantity(s)
	if err != nil {
		return 0, fmt.Errorf("loss %q %w; %s", clip(s), err, remedy)
	}
	switch suffix {
	case "%":
		// The exponent keeps the result the nearest one to the decimal that was written.
		p, err := strconv.ParseFloat(num+"e-2", 64)
		if err != nil || p > 1 {
			return 0, fmt.Errorf("loss %q is over 100%%; %s", clip(s), remedy)
		}
		return p, nil
	case "":
		p, err := strconv.ParseFloat(num, 64)
		if err != nil || p >= 1 {
			return 0, fmt.Errorf("loss %q without a %% sign must be below 1; write 1%% or 100%%", clip(s))
		}
		return p, nil
	}
	return 0, fmt.Errorf("loss %q has the unknown unit %q; %s", clip(s), clip(suffix), remedy)
}

// FormatLoss writes a probability so that ParseLoss reads the same value:
// "0.1%".
func FormatLoss(p float64) string {
	if s := strconv.FormatFloat(p*100, 'f', -1, 64); len(s) <= 12 {
		if back, err := ParseLoss(s + "%"); err == nil && back == p {
			return s + "%"
		}
	}
	return strconv.FormatFloat(p, 'f', -1, 64)
}

// quantityMax bounds the text of a quantity: the longest that FormatLoss writes
// (the smallest denormal) has 1,076 characters.
const quantityMax = 1100

// splitQuantity takes "1.5 gbit" apart into digits and suffix. The digits are
// an unsigned decimal number, without an exponent.
func splitQuantity(s string) (num, suffix string, err error) {
	s = strings.TrimSpace(s)
	if len(s) > quantityMax {
		return "", "", fmt.Errorf("is too long")
	}
	end := 0
	for end < len(s) && (s[end] >= '0' && s[end] <= '9' || s[end] == '.') {
		end++
	}
	num, suffix = s[:end], strings.TrimSpace(s[end:])
	if strings.HasPrefix(s, "-") {
		return "", "", fmt.Errorf("is negative")
	}
	if num == "" || strings.Count(num, ".") > 1 || strings.HasPrefix(num, ".") || strings.HasSuffix(num, ".") {
		return "", "", fmt.Errorf("does not start with a number")
	}
	return num, suffix, nil
}

// scale multiplies a decimal number exactly; the product must be a whole number
// that fits a signed 64-bit integer.
func scale(num string, factor uint64) (uint64, error) {
	r, ok := new(big.Rat).SetString(num)
	if !ok {
		return 0, fmt.Errorf("does not start with a number")
	}
	r.Mul(r, new(big.Rat).SetInt(new(big.Int).SetUint64(factor)))
	if !r.IsInt() {
		return 0, fmt.Errorf("is not a whole number of its smallest unit")
	}
	if !r.Num().IsUint64() || r.Num().Uint64() > math.MaxInt64 {
		return 0, fmt.Errorf("is too large")
	}
	return r.Num().Uint64(), nil
}

// clip keeps a piece of input short enough for a message.
func clip(s string) string {
	const most = 60
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// ParseDelay reads a delay or jitter in the form of [time.ParseDuration]: "12ms",
// "300us", "1.5s". Negative ones, and numbers other than 0 without a unit, are errors.
func ParseDelay(s string) (time.Duration, error) {
	const remedy = "write a delay like 12ms or 300us"
	text := strings.TrimSpace(s)
	if num, unit, err := splitQuantity(text); err == nil {
		text = num + unit // "12 ms" is as good as "12ms"
	}
	d, err := time.ParseDuration(text)
	switch {
	case err != nil && strings.Contains(err.Error(), "missing unit"):
		return 0, fmt.Errorf("delay %q has no unit; %s", clip(s), remedy)
	case err != nil:
		return 0, fmt.Errorf("delay %q is not a duration; %s", clip(s), remedy)
	case d < 0:
		return 0, fmt.Errorf("delay %q is negative; %s", clip(s), remedy)
	}
	return d, nil
}

// FormatDelay writes a delay in ASCII so that ParseDelay reads the same value.
func FormatDelay(d time.Duration) string {
	return strings.Replace(d.String(), "µ", "u", 1)
}
