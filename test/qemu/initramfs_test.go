package qemu

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// writeInitramfs writes a guest's first file system: its init, the modules, and
// their order. The format is "newc" of cpio, as in the kernel's
// Documentation/driver-api/early-userspace/buffer-format.rst.
func writeInitramfs(path, init string, modules []string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	a := archive{w: bufio.NewWriter(f)}
	a.dir("dev")
	a.dir("modules")
	a.file("init", init)
	var list strings.Builder
	for _, m := range modules {
		name := filepath.Base(m)
		a.file("modules/"+name, m)
		fmt.Fprintln(&list, name)
	}
	a.entry("modules/list", 0o100644, []byte(list.String()))
	a.entry("TRAILER!!!", 0, nil)
	if a.err != nil {
		return fmt.Errorf("write %s: %w", path, a.err)
	}
	if err := a.w.Flush(); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return f.Close()
}

type archive struct {
	w   *bufio.Writer
	ino int
	err error // the first
}

func (a *archive) dir(name string) { a.entry(name, 0o040755, nil) }

func (a *archive) file(name, from string) {
	data, err := os.ReadFile(from)
	if err != nil && a.err == nil {
		a.err = err
	}
	a.entry(name, 0o100755, data)
}

// entry appends a file. Numbers are of eight hexadecimal digits; name and data
// are padded to four bytes.
func (a *archive) entry(name string, mode int, data []byte) {
	if a.err != nil {
		return
	}
	a.ino++
	const magic, links = "070701", 1
	head := fmt.Sprintf("%s%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x", magic,
		a.ino, mode, 0, 0, links, 0, len(data), 0, 0, 0, 0, len(name)+1, 0)
	head += name + "\x00"
	head += strings.Repeat("\x00", (4-len(head)%4)%4)
	_, err1 := io.WriteString(a.w, head)
	_, err2 := a.w.Write(data)
	_, err3 := io.WriteString(a.w, strings.Repeat("\x00", (4-len(data)%4)%4))
	for _, err := range []error{err1, err2, err3} {
		if err != nil {
			a.err = err
		}
	}
}
