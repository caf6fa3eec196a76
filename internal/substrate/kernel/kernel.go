// Package kernel knows which Linux kernels Trellis runs on.
package kernel

import (
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Version is the first two numbers of a kernel's release.
type Version struct{ Major, Minor int }

func (v Version) String() string { return fmt.Sprintf("%d.%d", v.Major, v.Minor) }

// Minimum is the oldest kernel that Trellis supports, that of Debian 12. What it
// has, and older ones lack: addresses that say who has set them (IFA_PROTO, 5.18,
// commit 47f0bd503210), overlays on id-mapped layers (5.19), and being tested.
var Minimum = Version{6, 1}

// Remedy says where to get a kernel that will do.
const Remedy = "use Debian 12 or Ubuntu 24.04 or later, or on Ubuntu 22.04 the package linux-generic-hwe-22.04"

// Parse reads a release as uname -r prints it, such as 6.1.0-25-amd64.
func Parse(release string) (v Version, ok bool) {
	parts := strings.SplitN(release, ".", 3)
	if len(parts) < 2 {
		return v, false
	}
	if end := strings.IndexFunc(parts[1], func(r rune) bool { return r < '0' || r > '9' }); end >= 0 {
		parts[1] = parts[1][:end]
	}
	major, err1 := strconv.Atoi(parts[0])
	minor, err2 := strconv.Atoi(parts[1])
	return Version{major, minor}, err1 == nil && err2 == nil
}

// Supported says whether Trellis runs on the kernel of the release.
func Supported(release string) bool {
	v, ok := Parse(release)
	return ok && (v.Major > Minimum.Major || v.Major == Minimum.Major && v.Minor >= Minimum.Minor)
}

// Release gives the running kernel's release.
func Release() (string, error) {
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return "", fmt.Errorf("read the kernel's version: %w", err)
	}
	return unix.ByteSliceToString(uts.Release[:]), nil
}

// Check refuses to run on a kernel that is too old.
func Check() error {
	release, err := Release()
	if err != nil {
		return err
	}
	return check(release)
}

func check(release string) error {
	if !Supported(release) {
		return fmt.Errorf("this kernel is %s, and Trellis needs Linux %v or later; %s", release, Minimum, Remedy)
	}
	return nil
}
