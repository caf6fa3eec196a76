package container

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"trellis/internal/vnet"
)

// Names of files in a node's directory, RunDir/nodes/VNET/NODE.
const (
	recordFile   = "state.json"  // what this package knows of the node
	servicesFile = "services"    // the table that init reads
	statusFile   = "status"      // what init reports
	configFile   = "config.json" // the OCI runtime's configuration
	pidFile      = "pid"         // written by the OCI runtime
)

// record is the state of a node on disk.
type record struct {
	ID
	Boot        string // of the machine; a record of another boot is of a dead node
	IDBase      uint32
	Created     time.Time
	Limits      Limits
	Fingerprint string
	Image       string   // see imageName
	Command     *command `json:",omitempty"` // of the image
	Services    []Service
	Yields      bool `json:",omitempty"` // to Command: the services are left out
	Table       int  `json:",omitempty"` // version of the service table that its init reads; 0: the first
	// Generations counts restarts that were asked for, by service name.
	Generations map[string]int `json:",omitempty"`
	// Stopped names the services that are to stay ended, sorted.
	Stopped []string `json:",omitempty"`
	Env     []string `json:",omitempty"` // of the image and the spec, for Exec
	// Disk is the device number of the node's writable file system.
	Disk uint64
	// Pid and StartTicks (start time in clock ticks since boot) of PID 1.
	Pid        int    `json:",omitempty"`
	StartTicks uint64 `json:"Birth,omitempty"` // the name that earlier builds wrote
	Released   bool
	// Saved are the digests of what was placed where the node may save, by path.
	Saved map[string]string `json:",omitempty"`
}

// command is what an image runs.
type command struct {
	Argv, Env []string
	Dir       string
	UID, GID  int
	Restart   vnet.Restart `json:",omitempty"`
}

// Digest is the digest of a list of services, for comparison with
// [State.ServicesDigest].
func Digest(s []Service) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // strings only
	}
	if len(s) == 0 {
		b = nil
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:16])
}

var bootID = sync.OnceValues(func() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b)), err
})

// processStart returns when a process started, in clock ticks since boot (field 22 of
// /proc/PID/stat, proc_pid_stat(5)); false if there is none or it is dead.
func processStart(pid int) (uint64, bool) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false
	}
	// The second field is the program's name in parentheses, with any characters.
	_, rest, ok := strings.Cut(string(b[strings.LastIndexByte(string(b), ')')+1:]), " ")
	f := strings.Fields(rest)
	if !ok || len(f) < 20 || f[0] == "Z" || f[0] == "X" {
		return 0, false
	}
	v, err := strconv.ParseUint(f[19], 10, 64)
	return v, err == nil
}

// running reports whether the node's PID 1 is alive.
func (c *record) running() bool {
	if c.Pid == 0 {
		return false
	}
	if boot, err := bootID(); err != nil || boot != c.Boot {
		return false
	}
	b, ok := processStart(c.Pid)
	return ok && b == c.StartTicks
}

// pidfd opens the node's PID 1, which a reused number cannot stand in for.
func (c *record) pidfd() (int, error) {
	// Looked at before, too: the number may be a thread's by now, of which there is
	// no pidfd (EINVAL, from Linux 6.16 on ENOENT).
	if c.Pid == 0 || !c.running() {
		return -1, unix.ESRCH
	}
	fd, err := unix.PidfdOpen(c.Pid, 0)
	if err != nil {
		return -1, err
	}
	if !c.running() {
		unix.Close(fd)
		return -1, unix.ESRCH
	}
	return fd, nil
}

func (r *Runtime) nodeDir(id ID) string {
	return filepath.Join(r.cfg.RunDir, "nodes", id.VNet, id.Node)
}

// clone copies a record as far as this package changes one in place.
func (c *record) clone() *record {
	d := *c
	d.Generations = maps.Clone(c.Generations)
	d.Stopped = slices.Clone(c.Stopped)
	return &d
}

// readRecord reads a node's record from the disk.
func (r *Runtime) readRecord(id ID) (*record, error) {
	b, err := os.ReadFile(filepath.Join(r.nodeDir(id), recordFile))
	if err != nil {
		return nil, err
	}
	c := new(record)
	if err := json.Unmarshal(b, c); err != nil {
		return nil, fmt.Errorf("read the record of container %s: %w", id, err)
	}
	if c.ID != id {
		return nil, fmt.Errorf("the record of container %s is that of %s", id, c.ID)
	}
	return c, nil
}

// loadRunning is load for what needs a living node.
func (r *Runtime) loadRunning(id ID) (*record, error) {
	r.index.mu.RLock()
	defer r.index.mu.RUnlock()
	e := r.index.get(id)
	if e == nil || e.record == nil || e.pidfd < 0 || e.ending {
		return nil, fmt.Errorf("container %s is not running", id)
	}
	return e.record.clone(), nil
}

// save writes a node's record, atomically, and books it.
func (r *Runtime) save(c *record) error {
	b, err := json.Marshal(c)
	if err != nil {
		return err
	}
	if err := replace(filepath.Join(r.nodeDir(c.ID), recordFile), b, 0o600); err != nil {
		return fmt.Errorf("write the record of container %s: %w", c.ID, err)
	}
	r.index.put(c)
	return nil
}

// replace writes a file so that a reader sees the old or the new content, and
// a crash leaves one of them.
func replace(path string, content []byte, mode os.FileMode) error {
	tmp := path + ".new"
	if err := os.WriteFile(tmp, content, mode); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// lock waits until nothing else is being done to the container, and returns what
// unlocks it.
func (r *Runtime) lock(id ID) func() {
	unlock, err := r.locks.Lock(context.Background(), id)
	if err != nil {
		panic(err) // that context never ends
	}
	return unlock
}
