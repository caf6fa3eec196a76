package serve

import (
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"gopkg.in/natefinch/lumberjack.v2"

	"trellis/internal/agent"
	"trellis/internal/config"
	"trellis/internal/pip"
)

// DefaultStartTimeout is how long a start waits for a store that is elsewhere.
const DefaultStartTimeout = 30 * time.Second

// The directories of the default instance.
const (
	DefaultStateDir = "/var/lib/trellis"
	DefaultRunDir   = "/run/trellis"
)

// Config says how to run the service. The zero value is the default instance.
type Config struct {
	StateDir string // what survives a reboot; DefaultStateDir
	RunDir   string // sockets, locks, mounts; DefaultRunDir
	// Instance is the tag of everything that this service owns on the machine:
	// one to eight of a-z and 0-9. Empty: "trellis" for the default run
	// directory, otherwise a hash of it.
	Instance string
	Runtime  string // OCI runtime, by name or path; crun
	LogLevel string // debug, info, warn, error; info
	Version  string // what Info reports
	// StartTimeout bounds the wait for a store that is elsewhere to answer;
	// DefaultStartTimeout.
	StartTimeout time.Duration
	// Adopt and RemoveAll say what becomes of networks that run on the machine and
	// that the store does not know, because it is another one than that of the last
	// start: they are left alone, or removed. With neither, the service does not
	// start on such a store.
	Adopt, RemoveAll bool
	// Settings are what the configuration file says; nil: one machine on its own.
	Settings *config.Config

	// newAgent stands in for the real agent in tests.
	newAgent func(agent.Config) (Agent, error)
}

var instancePattern = regexp.MustCompile(`^[a-z0-9]{1,8}$`)

// complete fills in the defaults, and checks.
func (c Config) complete() (Config, error) {
	for dir, standard := range map[*string]string{&c.StateDir: DefaultStateDir, &c.RunDir: DefaultRunDir} {
		if *dir == "" {
			*dir = standard
		}
		abs, err := filepath.Abs(*dir)
		if err != nil {
			return c, fmt.Errorf("directory %s: %w", *dir, err)
		}
		*dir = abs
	}
	if c.Instance == "" {
		c.Instance = instance(c.RunDir)
	}
	if !instancePattern.MatchString(c.Instance) {
		return c, fmt.Errorf("instance %q is not one to eight of a-z and 0-9; choose another", c.Instance)
	}
	if c.Runtime == "" {
		c.Runtime = "crun"
	}
	if c.LogLevel == "" {
		c.LogLevel = "info"
	}
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.LogLevel)); err != nil {
		return c, fmt.Errorf("log level %q is not one of debug, info, warn, error", c.LogLevel)
	}
	if c.StartTimeout == 0 {
		c.StartTimeout = DefaultStartTimeout
	}
	if c.StartTimeout < 0 {
		return c, fmt.Errorf("start timeout %v is negative; name a time such as 30s", c.StartTimeout)
	}
	if c.Adopt && c.RemoveAll {
		return c, errors.New("networks that the store does not know are either left alone or removed; give --adopt or --remove-all")
	}
	if c.Settings == nil {
		c.Settings = config.Alone()
	}
	if c.newAgent == nil {
		c.newAgent = newAgent
	}
	return c, nil
}

// newAgent makes the agent of this machine.
func newAgent(c agent.Config) (Agent, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("trellis serve makes namespaces and devices, which needs root; run it as root")
	}
	a, err := agent.New(c)
	if err != nil {
		return nil, err // and no nil *agent.Agent that looks like an Agent
	}
	return a, nil
}

// instance gives the tag of the service with a run directory.
func instance(runDir string) string {
	if runDir == DefaultRunDir {
		return pip.DefaultInstance
	}
	sum := sha256.Sum256([]byte(runDir))
	return strings.ToLower(base32.StdEncoding.EncodeToString(sum[:5]))
}

func (c Config) socket() string   { return filepath.Join(c.RunDir, "trellis.sock") }
func (c Config) lockPath() string { return filepath.Join(c.RunDir, "lock") }
func (c Config) logPath() string  { return filepath.Join(c.StateDir, "trellis.log") }
func (c Config) storeDir() string { return filepath.Join(c.StateDir, "etcd") }
func (c Config) keepFile() string { return filepath.Join(c.RunDir, "kept") }

// mkdirs makes the directories. Others may pass through them, since nodes'
// file systems lie below, and not look in.
func (c Config) mkdirs() error {
	for _, dir := range []string{c.StateDir, c.RunDir} {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return fmt.Errorf("make the service's directories: %w; run as root, or name directories of your own", err)
		}
	}
	return nil
}

// Bounds of the log file of a service in the background.
const (
	logMegabytes = 10
	logBackups   = 2
)

// logger gives the service's log: standard error, or a file of bounded size.
func (c Config) logger(background bool) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(c.LogLevel)) // complete has checked it
	var w io.Writer = os.Stderr
	if background {
		w = &lumberjack.Logger{Filename: c.logPath(), MaxSize: logMegabytes, MaxBackups: logBackups}
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level}))
}
