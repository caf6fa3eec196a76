package testenv

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// BinaryVariable names the environment variable with the path of a built
// trellis, for tests that run it. Without it they build their own.
const BinaryVariable = "TRELLIS_TEST_BINARY"

// Main runs the tests of a package that uses [StartService], and removes what
// they share. Call it from TestMain.
func Main(m *testing.M) {
	program.allowed = true
	code := m.Run()
	if program.dir != "" {
		os.RemoveAll(program.dir)
	}
	os.Exit(code)
}

// program is the binary that the tests of this process share.
var program struct {
	once    sync.Once
	allowed bool   // Main will clean up
	dir     string // of the own build; empty if there is none
	path    string
	err     error
}

// Binary returns the path of the trellis to test, built at most once a process.
func Binary() (string, error) {
	program.once.Do(func() { program.path, program.err = build() })
	return program.path, program.err
}

func build() (string, error) {
	if path := os.Getenv(BinaryVariable); path != "" {
		return filepath.Abs(path)
	}
	if !program.allowed {
		return "", errors.New("call testenv.Main from TestMain, which removes the program that is built for the tests")
	}
	dir, err := os.MkdirTemp("", prefix()+"bin-")
	if err != nil {
		return "", err
	}
	program.dir = dir
	path := filepath.Join(dir, "trellis")
	cmd := exec.Command("go", "build", "-o", path, "trellis/cmd/trellis")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build trellis: %w\n%s", err, strings.TrimSpace(string(out)))
	}
	return path, nil
}
