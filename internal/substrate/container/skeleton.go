package container

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ownDir is Trellis' directory inside a node.
const ownDir = "/.trellis"

// fillBase makes the layer that lies over every image: the mount points, and
// what Trellis itself needs in a node.
func fillBase(dir string) error {
	for _, d := range []string{"proc", "sys", "dev", "etc", ownDir, ownDir + "/disk", ownDir + "/hosts", "run", "run/trellis"} {
		if err := mkdirMode(filepath.Join(dir, d), 0o755); err != nil {
			return err
		}
	}
	if err := mkdirMode(filepath.Join(dir, ownDir, "shm"), 0o777|os.ModeSticky); err != nil {
		return err
	}
	if err := os.Symlink(ownDir+"/hosts/"+hostsFile, filepath.Join(dir, "etc/hosts")); err != nil {
		return err
	}
	return os.Link(inStage("init"), filepath.Join(dir, ownDir, "init"))
}

// fillDev makes the /dev that all nodes share, read-only: the devices that
// every OCI container has, real ones, so that no node needs a mount for each.
func fillDev(dir string) error {
	devices := []struct {
		name         string
		major, minor uint32
	}{{"null", 1, 3}, {"zero", 1, 5}, {"full", 1, 7}, {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0}}
	for _, d := range devices {
		path := filepath.Join(dir, d.name)
		if err := unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(d.major, d.minor))); err != nil {
			return fmt.Errorf("make %s: %w", d.name, err)
		}
		if err := os.Chmod(path, 0o666); err != nil {
			return err
		}
	}
	if err := mkdirMode(filepath.Join(dir, "pts"), 0o755); err != nil {
		return err
	}
	links := [][2]string{{"pts/ptmx", "ptmx"}, {"/proc/self/fd", "fd"}, {"/proc/self/fd/0", "stdin"},
		{"/proc/self/fd/1", "stdout"}, {"/proc/self/fd/2", "stderr"}, {ownDir + "/shm", "shm"}}
	for _, l := range links {
		if err := os.Symlink(l[0], filepath.Join(dir, l[1])); err != nil {
			return err
		}
	}
	return nil
}

// hostFiles are what programs under /usr need of the machine's /etc, and
// nothing that is not in every installation alike: no keys, no accounts, no
// addresses. Patterns of filepath.Glob; missing ones are passed over.
var hostFiles = []string{
	"alternatives/*", "bash.bashrc", "bash_completion", "debian_version", "environment", "ethertypes",
	"gai.conf", "host.conf", "inputrc", "iproute2/*", "iproute2/*/*", "ld.so.cache", "ld.so.conf",
	"ld.so.conf.d/*", "localtime", "locale.alias", "lsb-release", "networks", "nsswitch.conf",
	"os-release", "profile", "protocols", "rpc", "services", "terminfo/*/*", "tcpdump/*", "vim/vimrc",
	"nftables.conf", "xattr.conf", "login.defs", "python3*/*", "perl/Net/*",
}

// hostUsers are the accounts of the machine that nodes know, if it has them:
// those that routing daemons and tools change to. Login names of people stay out.
var hostUsers = []string{"daemon", "bin", "sys", "man", "mail", "frr", "bird", "tcpdump", "_lldpd", "iperf3", "sshd", "www-data"}

// hostGroups are the groups taken over besides those of hostUsers.
var hostGroups = []string{"adm", "tty", "disk", "utmp", "staff", "users", "frrvty", "frr", "bird"}

// hostDirs are the directories of a fresh system, with the account that owns
// each (root where there is none).
var hostDirs = []struct {
	path, owner string
	mode        os.FileMode
}{
	{"etc", "", 0o755}, {"home", "", 0o755}, {"media", "", 0o755}, {"mnt", "", 0o755}, {"opt", "", 0o755},
	{"root", "", 0o700}, {"run", "", 0o755}, {"run/lock", "", 0o777 | os.ModeSticky}, {"srv", "", 0o755},
	{"tmp", "", 0o777 | os.ModeSticky}, {"usr", "", 0o755}, {"var", "", 0o755}, {"var/cache", "", 0o755},
	{"var/lib", "", 0o755}, {"var/log", "", 0o755}, {"var/spool", "", 0o755},
	{"var/tmp", "", 0o777 | os.ModeSticky},
	{"etc/frr", "frr", 0o755}, {"run/frr", "frr", 0o755}, {"var/log/frr", "frr", 0o755}, {"var/lib/frr", "frr", 0o755},
	{"etc/bird", "bird", 0o755}, {"run/bird", "bird", 0o755},
}

// fillHost makes the skeleton of a node that runs the machine's own programs.
func fillHost(dir string) error {
	accounts, err := readAccounts("/etc/passwd")
	if err != nil {
		return err
	}
	for _, d := range hostDirs {
		path := filepath.Join(dir, d.path)
		if err := mkdirMode(path, d.mode); err != nil {
			return err
		}
		if a, ok := accounts[d.owner]; ok && d.owner != "" {
			if err := os.Chown(path, a.uid, a.gid); err != nil {
				return err
			}
		}
	}
	for _, l := range [][2]string{{"/run", "var/run"}, {"/run/lock", "var/lock"}} {
		if err := os.Symlink(l[0], filepath.Join(dir, l[1])); err != nil {
			return err
		}
	}
	if err := mergedLinks(dir); err != nil {
		return err
	}
	etc := filepath.Join(dir, "etc")
	for _, pattern := range hostFiles {
		found, err := filepath.Glob(filepath.Join("/etc", pattern))
		if err != nil {
			return err
		}
		for _, f := range found {
			if err := copyPublic(f, filepath.Join(dir, f)); err != nil {
				return err
			}
		}
	}
	files := map[string]string{
		"hostname": "", "resolv.conf": "", "fstab": "", "shells": "/bin/sh\n/bin/bash\n",
		// Without this file vtysh complains at every start. It would ask PAM about root,
		// and a node has no PAM.
		"frr/vtysh.conf": "service integrated-vtysh-config\nusername root nopassword\n",
	}
	if files["passwd"], files["group"], err = accountFiles(accounts); err != nil {
		return err
	}
	for name, content := range files {
		if err := writeMode(filepath.Join(etc, name), []byte(content), 0o644); err != nil {
			return err
		}
	}
	return os.Symlink("/proc/mounts", filepath.Join(etc, "mtab"))
}

// mergedLinks makes /bin, /lib and their like as links into /usr. A machine
// where they are not is not supported (Debian 12, Ubuntu 22.04 and later are merged).
func mergedLinks(dir string) error {
	for _, name := range []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32"} {
		target, err := os.Readlink("/" + name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return fmt.Errorf("/%s is not a link into /usr; install the package usrmerge: %w", name, err)
		}
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// copyPublic copies a regular file that everyone may read, or a symbolic link
// that leads into /usr or stays in /etc/alternatives. Anything else is passed over.
func copyPublic(from, to string) error {
	info, err := os.Lstat(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := os.Readlink(from)
		if err != nil {
			return err
		}
		abs := target
		if !filepath.IsAbs(abs) {
			abs = filepath.Join(filepath.Dir(from), target)
		}
		if !strings.HasPrefix(abs, "/usr/") && !strings.HasPrefix(abs, "/bin/") && !strings.HasPrefix(abs, "/etc/alternatives/") {
			return nil
		}
		return os.Symlink(target, to)
	case !info.Mode().IsRegular() || info.Mode().Perm()&0o004 == 0 || info.Size() > 1<<20:
		return nil
	}
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return writeMode(to, content, 0o644)
}

type account struct {
	uid, gid int
	line     string
}

// readAccounts reads passwd(5) by name.
func readAccounts(path string) (map[string]account, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	accounts := map[string]account{}
	for line := range strings.SplitSeq(string(b), "\n") {
		f := strings.Split(line, ":")
		if len(f) < 7 {
			continue
		}
		uid, err1 := strconv.Atoi(f[2])
		gid, err2 := strconv.Atoi(f[3])
		if err1 == nil && err2 == nil {
			accounts[f[0]] = account{uid, gid, line}
		}
	}
	return accounts, nil
}

// accountFiles writes the nodes' passwd and group.
func accountFiles(accounts map[string]account) (passwd, group string, err error) {
	var p, g bytes.Buffer
	p.WriteString("root:x:0:0:root:/root:/bin/bash\n")
	gids := map[int]bool{}
	for _, name := range hostUsers {
		if a, ok := accounts[name]; ok && a.uid != 0 {
			p.WriteString(a.line + "\n")
			gids[a.gid] = true
		}
	}
	p.WriteString("nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n")
	b, err := os.ReadFile("/etc/group")
	if err != nil {
		return "", "", err
	}
	g.WriteString("root:x:0:\n")
	for line := range strings.SplitSeq(string(b), "\n") {
		f := strings.Split(line, ":")
		if len(f) != 4 || f[0] == "root" || f[0] == "nogroup" {
			continue
		}
		gid, err := strconv.Atoi(f[2])
		if err != nil || !gids[gid] && !slices.Contains(hostGroups, f[0]) {
			continue
		}
		members := slices.DeleteFunc(strings.Split(f[3], ","), func(m string) bool { return !slices.Contains(hostUsers, m) })
		g.WriteString(strings.Join(f[:3], ":") + ":" + strings.Join(members, ",") + "\n")
	}
	g.WriteString("nogroup:x:65534:\n")
	return p.String(), g.String(), nil
}
