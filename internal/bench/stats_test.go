package bench

import (
	"math"
	"testing"
)

func TestSummarize(t *testing.T) {
	nan := math.NaN()
	for _, tc := range []struct {
		name    string
		samples []float64
		want    Spread
	}{
		{"nothing", nil, Spread{}},
		{"one", []float64{3}, Spread{3, 3, 3, 1}},
		{"odd, unsorted", []float64{9, 1, 5}, Spread{5, 1, 9, 3}},
		{"even", []float64{4, 1, 2, 100}, Spread{3, 1, 100, 4}},
		{"missing samples do not count", []float64{nan, 2, nan, 4}, Spread{3, 2, 4, 2}},
		{"only missing ones", []float64{nan}, Spread{}},
		{"negative", []float64{-1, 1}, Spread{0, -1, 1, 2}},
	} {
		if got := Summarize(tc.samples); got != tc.want {
			t.Errorf("%s: Summarize(%v) = %+v, want %+v", tc.name, tc.samples, got, tc.want)
		}
	}
}

func TestSummarizeLeavesItsArgumentAlone(t *testing.T) {
	samples := []float64{3, 1, 2}
	Summarize(samples)
	if samples[0] != 3 || samples[1] != 1 || samples[2] != 2 {
		t.Errorf("samples are now %v", samples)
	}
}
