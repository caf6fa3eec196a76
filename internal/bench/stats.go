package bench

import (
	"fmt"
	"math"
	"slices"
)

// Spread sums up the samples of one quantity.
type Spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
	// Samples counts what went in. With 0 the others are 0 and mean nothing.
	Samples int `json:"samples"`
}

// Format writes median (min–max), each as show writes it; a quantity that was not
// measured is a dash.
func (s Spread) Format(show func(float64) string) string {
	switch s.Samples {
	case 0:
		return "-"
	case 1:
		return show(s.Median)
	}
	return fmt.Sprintf("%s (%s–%s)", show(s.Median), show(s.Min), show(s.Max))
}

// Summarize sums up samples. NaN stands for a sample that could not be taken,
// and does not count. The median of an even number is the mean of the two in the
// middle.
func Summarize(samples []float64) Spread {
	s := slices.DeleteFunc(slices.Clone(samples), math.IsNaN)
	if len(s) == 0 {
		return Spread{}
	}
	slices.Sort(s)
	middle := s[len(s)/2]
	if len(s)%2 == 0 {
		middle = (s[len(s)/2-1] + middle) / 2
	}
	return Spread{Median: middle, Min: s[0], Max: s[len(s)-1], Samples: len(s)}
}
