package netns

import (
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"syscall"

	"trellis/internal/substrate/sysctl"
	"trellis/internal/vnet"
)

// TrySysctls sets the sysctls of one node, in the order of [NS.Defaults], in a new
// network namespace that belongs to a new user namespace, as the node's does: it lacks
// some that the machine's own has. Those of interfaces are tried on lo. It gives what
// is wrong with each that cannot be set, by name: fs.ErrNotExist where there is none.
func TrySysctls(sysctls map[string]string) map[string]error {
	bad := map[string]error{}
	if len(sysctls) == 0 {
		return bad
	}
	if err := trySysctls(sysctls, bad); err != nil {
		for name := range sysctls {
			bad[name] = err
		}
	}
	return bad
}

func trySysctls(sysctls map[string]string, bad map[string]error) (err error) {
	child := exec.Command("cat") // waits for the end of its input
	input, err := child.StdinPipe()
	if err != nil {
		return fmt.Errorf("make a namespace to try it in: %w", err)
	}
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 1000000, Size: 65536}}
	child.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET, UidMappings: ids, GidMappings: ids}
	if err := child.Start(); err != nil {
		return fmt.Errorf("make a namespace to try it in: %w", err)
	}
	defer func() { err = errors.Join(err, input.Close(), child.Wait()) }()
	ns, err := OfPid(child.Process.Pid)
	if err != nil {
		return err
	}
	defer ns.Close()
	return ns.Do(func() (err error) {
		own, err := sysctl.Open()
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, own.Close()) }()
		for _, name := range slices.Sorted(maps.Keys(sysctls)) {
			path := vnet.SysctlPath(name)
			if i := vnet.SysctlInterface(name); i != "" {
				path = strings.Replace(path, "/"+i+"/", "/"+loopback+"/", 1)
			}
			if err := own.Write(path, sysctls[name]); err != nil {
				bad[name] = err
			}
		}
		return nil
	})
}
