package image

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// user resolves the user that an image names: "", "user" or "user:group", by
// name or by number.
func user(rootfs, spec string) (uid, gid int, err error) {
	if spec == "" {
		return 0, 0, nil
	}
	u, g, hasGroup := strings.Cut(spec, ":")
	if uid, gid, err = lookup(rootfs, "passwd", u); err != nil {
		return 0, 0, err
	}
	if hasGroup {
		if gid, _, err = lookup(rootfs, "group", g); err != nil {
			return 0, 0, err
		}
	}
	return uid, gid, nil
}

// lookup finds a name or number in /etc/passwd or /etc/group of the image, and
// returns its third and fourth field, as far as they are numbers.
func lookup(rootfs, file, key string) (id, other int, err error) {
	number, numeric := strconv.Atoi(key)
	if numeric == nil && (number < 0 || number > maxID) {
		return 0, 0, fmt.Errorf("its user %s: a node has ids up to %d", key, maxID)
	}
	root, err := os.OpenFile(rootfs, unix.O_DIRECTORY, 0)
	if err != nil {
		return 0, 0, err
	}
	defer root.Close()
	var content []byte
	if fd, err := openIn(int(root.Fd()), "etc/"+file, unix.O_RDONLY|unix.O_NONBLOCK); err == nil {
		f := os.NewFile(uintptr(fd), file)
		defer f.Close()
		if content, err = io.ReadAll(io.LimitReader(f, 1<<20)); err != nil {
			return 0, 0, err
		}
	}
	for line := range strings.SplitSeq(string(content), "\n") {
		f := append(strings.Split(line, ":"), "", "", "", "")
		v, err := strconv.Atoi(f[2])
		if err != nil || v < 0 || v > maxID || f[0] != key && (numeric != nil || v != number) {
			continue
		}
		if o, err := strconv.Atoi(f[3]); err == nil && o >= 0 && o <= maxID {
			other = o
		}
		return v, other, nil
	}
	if numeric == nil {
		return number, 0, nil
	}
	return 0, 0, fmt.Errorf("its user or group %q is not in its /etc/%s", key, file)
}
