package rcu

import (
	"os"
	"strings"
	"testing"

	"trellis/test/testenv"
)

func setting(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(knob)
	if err != nil {
		t.Skip("this kernel has no", knob)
	}
	return strings.TrimSpace(string(b))
}

// TestExpediteNestsAndRestores holds twice and lets go twice. Another process
// may hold meanwhile; then only it can put the setting back.
func TestExpediteNestsAndRestores(t *testing.T) {
	testenv.Measures(t)
	testenv.NeedRoot(t, "writes"+" "+knob)
	before := setting(t)
	outer, err := Expedite()
	if err != nil {
		t.Fatal(err)
	}
	inner, err := Expedite()
	if err != nil {
		t.Fatal(err)
	}
	if err := inner(); err != nil {
		t.Error(err)
	}
	if err := inner(); err != nil { // again is no release
		t.Error(err)
	}
	if got := setting(t); got != "1" {
		t.Errorf("the setting is %s while it is held", got)
	}
	if err := outer(); err != nil {
		t.Error(err)
	}
	if got := setting(t); before == "0" && got != "0" {
		if _, err := os.Stat(marker); err != nil {
			t.Errorf("the setting was %s and is %s", before, got)
		}
	}
}
