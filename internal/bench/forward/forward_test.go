package forward

import (
	"testing"
	"time"

	"trellis/test/testenv"
)

func TestEveryConfigurationForwards(t *testing.T) {
	testenv.NeedRoot(t)
	configs := append(Names(), "chain-1", "chain-3")
	report, err := Run(t.Context(), Config{Configs: configs, Sizes: []int{MinSize, MaxSize}, Repeat: 1, Length: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range append(report.Rows, report.Generator...) {
		t.Logf("%-12s %4d: %6.0f kpps, %5.0f ns, %5.0f ns without, ratio %.2f, loss %.4f", r.Config, r.Size, r.Kpps, r.NS, r.NSWithoutGenerator, r.RatioToNative, r.Loss)
	}
}
