package cli

import (
	"strings"
	"testing"
)

func TestForwardRefusesWhatCannotBeMeasured(t *testing.T) {
	for _, tc := range []struct {
		args string
		want []string
	}{
		{"--configs native,nativ", []string{`"nativ"`, "xdp-native", "vxlan-bridge", "chain-N"}},
		{"--configs chain-0", []string{`"0" routers`, "1 to 60"}},
		{"--configs native,native", []string{"native twice"}},
		{"--configs=", []string{"names nothing"}},
		{"--size 63", []string{"64 to 1518"}},
		{"--size 64,1519", []string{"1519"}},
		{"--size imix,tiny", []string{`"tiny"`, "imix"}},
		{"--size imix,imix", []string{"imix twice"}},
		{"--routes 500001", []string{"500001", "0 to 500000"}},
		{"--routes 7,7", []string{"7 twice"}},
		{"--flows 3", []string{"3 flows", "power of two"}},
		{"--flows 65536", []string{"65536", "32768"}},
		{"--routers 65", []string{"65", "1 to 64"}},
		{"--routers 4 --configs egre-fast-x4", []string{"egre-fast-x4 twice"}},
		{"--configs egre-fast-x0", []string{`"0" routers side by side`}},
		{"--size 64,64", []string{"64 twice"}},
		{"--repeat 0", []string{"at least once"}},
		{"--seconds 0", []string{"--seconds 0"}},
		{"--seconds 61", []string{"60 seconds"}},
		{"--cpu", []string{"add --sweep"}},
		{"extra", []string{"extra"}},
	} {
		for _, want := range tc.want {
			newTestEnv(t).wantError(exitUsage, want, append([]string{"bench", "forward"}, strings.Fields(tc.args)...)...)
		}
	}
}
