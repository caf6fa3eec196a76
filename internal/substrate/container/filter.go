package container

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"trellis/internal/substrate/seccomp"
)

// profile is the seccomp profile, encoded once.
var profile = sync.OnceValues(func() (json.RawMessage, error) { return json.Marshal(seccomp.Profile()) })

// noProfile is what a bundle has for a profile that brings the compiled filter. Should
// a runtime heed it all the same, no process of the node can do anything.
var noProfile = json.RawMessage(`{"defaultAction":"SCMP_ACT_ERRNO"}`)

const (
	// filterAnnotation holds the program for seccomp(2), base64: crun since 0.16 takes
	// it in place of the profile (crun(1)).
	filterAnnotation = "run.oci.seccomp_bpf_data"
	// filterFile is where in a container's state directory crun keeps the program.
	filterFile = "seccomp.bpf"
	// instructionSize is that of struct sock_filter, in bytes.
	instructionSize = 8
)

// filter is the seccomp filter of all nodes. To compile the profile takes a tenth of
// what a start takes, and its JSON is three times as long as the program; so the first
// container's is kept, as the runtime's own library has made it.
type filter struct{ compiled atomic.Pointer[string] }

// configure puts the filter into a bundle.
func (f *filter) configure(c *config) error {
	if compiled := f.compiled.Load(); compiled != nil {
		c.Annotations = map[string]string{filterAnnotation: *compiled}
		c.Linux.Seccomp = noProfile
		return nil
	}
	p, err := profile()
	c.Linux.Seccomp = p
	return err
}

// keep remembers the filter of a container that the runtime has made by the profile.
func (f *filter) keep(state string) error {
	if f.compiled.Load() != nil {
		return nil
	}
	b, err := os.ReadFile(filepath.Join(state, filterFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // a runtime that keeps none compiles for each
	}
	if err != nil {
		return fmt.Errorf("read the compiled seccomp filter: %w", err)
	}
	if len(b) == 0 || len(b)%instructionSize != 0 {
		return nil
	}
	s := base64.StdEncoding.EncodeToString(b)
	f.compiled.Store(&s)
	return nil
}
