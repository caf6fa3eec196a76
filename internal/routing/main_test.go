package routing

import (
	"flag"
	"os"
	"testing"
)

// TestMain lets more tests run side by side than there are cores: those with
// real daemons mostly wait for timers.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}
