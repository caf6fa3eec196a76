package container

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"trellis/internal/substrate/image"
	"trellis/internal/vnet"
)

// eachRuntime runs a test with every OCI runtime that is installed.
func eachRuntime(t *testing.T, f func(*testing.T, *Runtime)) {
	for _, name := range []string{"crun", "runc"} {
		t.Run(name, func(t *testing.T) {
			if _, err := exec.LookPath(name); err != nil {
				t.Skipf("needs %s: apt-get install %s", name, name)
			}
			f(t, newRuntime(t, Config{Runtime: name, RunDir: t.TempDir(), StateDir: t.TempDir(), Instance: instance(t), Images: image.Policy{Directories: []string{os.TempDir()}}}))
		})
	}
}

func fileOf(path string, content []byte, mode uint32) vnet.File {
	return vnet.File{Path: path, Content: content, Mode: mode}
}

func files(path, content string) []vnet.File { return []vnet.File{fileOf(path, []byte(content), 0)} }

func num(args ...uintptr) string {
	var s []string
	for _, a := range args {
		s = append(s, fmt.Sprint(a))
	}
	return strings.Join(s, " ")
}
