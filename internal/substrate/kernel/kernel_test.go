package kernel

import "testing"

func TestSupported(t *testing.T) {
	for release, want := range map[string]bool{
		"5.15.0-119-generic":   false, // Ubuntu 22.04
		"6.1.0-25-amd64":       true,  // Debian 12
		"6.1.0-25-cloud-arm64": true,
		"6.8.0-45-generic":     true, // Ubuntu 24.04, and 22.04 with hardware enablement
		"6.0.12":               false,
		"7.0-rc1":              true,
		"10.0":                 true,
		"4.19":                 false,
		"6":                    false,
		"":                     false,
		"unknown":              false,
	} {
		if got := Supported(release); got != want {
			t.Errorf("%q: %v, want %v", release, got, want)
		}
	}
}

func TestRefusalSaysWhatToDo(t *testing.T) {
	const want = "this kernel is 5.15.0-119-generic, and Trellis needs Linux 6.1 or later; " +
		"use Debian 12 or Ubuntu 24.04 or later, or on Ubuntu 22.04 the package linux-generic-hwe-22.04"
	if err := check("5.15.0-119-generic"); err == nil || err.Error() != want {
		t.Errorf("got %v", err)
	}
	if err := check("6.1.0-25-amd64"); err != nil {
		t.Error(err)
	}
}

func TestThisKernelIsRead(t *testing.T) {
	release, err := Release()
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := Parse(release); !ok {
		t.Errorf("cannot read %q", release)
	}
}
