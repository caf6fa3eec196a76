package doctor

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"trellis/internal/substrate/confine"
	"trellis/internal/substrate/netns"
	"trellis/internal/substrate/softirq"
)

// probeAll tries what only trying tells. Each attempt is made on a thread with
// network and mount namespaces of its own; thread and namespaces end together,
// and nothing of the attempt is left.
func (f *Facts) probeAll() {
	f.Probes[ProbeUserNS], f.Probes[ProbeIDMapped] = probeUserNS(existing(f.StateDir))
	f.Probes[ProbeConfine] = confine.Probe()
	f.Probes[ProbeTracing] = probeTracing()
	onThrowawayThread(func() {
		if err := isolate(); err != nil {
			for _, p := range []Probe{ProbeBPF, ProbeTCX, ProbeFilter, ProbeVeth, ProbeBridge, ProbeTBF, ProbeNetem, ProbeOverlay, ProbeBPFFS, ProbeTmpfs} {
				f.Probes[p] = err
			}
			return
		}
		f.probeNetwork()
		f.probeMounts()
	})
}

// probeTracing loads the program that counts packets.
func probeTracing() error {
	p, err := softirq.OpenProfiler()
	if err != nil {
		return err
	}
	return p.Close()
}

// TrySysctls tries the sysctls of a node on this machine, and gives what is wrong with
// those that cannot be set.
func TrySysctls(sysctls map[string]string) map[string]error { return netns.TrySysctls(sysctls) }

// onThrowawayThread runs f on a thread that ends with it. That cannot be the
// process's first thread, which Go keeps for ever, and by whose namespaces
// /proc/self tells those of the process.
func onThrowawayThread(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		if unix.Gettid() != unix.Getpid() {
			f()
			return
		}
		defer runtime.UnlockOSThread()
		onThrowawayThread(f) // while this goroutine holds the first thread
	}()
	<-done
}

// isolate gives the calling thread network and mount namespaces of its own.
func isolate() error {
	if err := unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_FS); err != nil {
		return fmt.Errorf("make namespaces: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make the mounts private: %w", err)
	}
	return nil
}

func (f *Facts) probeNetwork() {
	const port, bridge = "probe0", "probebr0"
	handle, err := netlink.NewHandle()
	if err != nil {
		for _, p := range []Probe{ProbeVeth, ProbeBridge, ProbeTBF, ProbeNetem, ProbeTCX, ProbeFilter} {
			f.Probes[p] = err
		}
	} else {
		defer handle.Close()
		attrs := netlink.NewLinkAttrs()
		attrs.Name = port
		f.Probes[ProbeVeth] = handle.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "probe1"})
		attrs = netlink.NewLinkAttrs()
		attrs.Name = bridge
		f.Probes[ProbeBridge] = handle.LinkAdd(&netlink.Bridge{LinkAttrs: attrs})
	}

	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "trellis_probe", Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
	})
	f.Probes[ProbeBPF] = err
	if err != nil {
		none := fmt.Errorf("no program to attach: %w", err)
		f.Probes[ProbeTCX], f.Probes[ProbeFilter] = none, none
	} else {
		defer program.Close()
	}
	if f.Probes[ProbeVeth] != nil {
		none := errors.New("no device to try it on")
		f.Probes[ProbeTBF], f.Probes[ProbeNetem], f.Probes[ProbeTCX], f.Probes[ProbeFilter] = none, none, none, none
		return
	}
	device, err := handle.LinkByName(port)
	if err != nil {
		f.Probes[ProbeVeth] = err
		return
	}
	index := device.Attrs().Index
	if program != nil {
		attached, err := link.AttachTCX(link.TCXOptions{Interface: index, Program: program, Attach: ebpf.AttachTCXIngress})
		if err == nil {
			err = attached.Close()
		}
		f.Probes[ProbeTCX] = err
		f.Probes[ProbeFilter] = addFilter(handle, index, program)
	}
	qdisc := netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT}
	try := func(q netlink.Qdisc) error {
		err := handle.QdiscAdd(q)
		switch {
		case err == nil:
			return handle.QdiscDel(q)
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EOPNOTSUPP):
			return errors.New("not in this kernel")
		}
		return err
	}
	f.Probes[ProbeTBF] = try(&netlink.Tbf{QdiscAttrs: qdisc, Rate: 1 << 20, Limit: 1 << 20, Buffer: 1 << 16})
	f.Probes[ProbeNetem] = try(netlink.NewNetem(qdisc, netlink.NetemQdiscAttrs{Latency: 1000}))
}

// addFilter puts a program on a device by a filter.
func addFilter(handle *netlink.Handle, index int, program *ebpf.Program) error {
	clsact := &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
	}}
	if err := handle.QdiscAdd(clsact); err != nil {
		return fmt.Errorf("add a clsact: %w", err)
	}
	return handle.FilterAdd(&netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: index, Parent: netlink.HANDLE_MIN_INGRESS, Handle: 1, Priority: 1, Protocol: unix.ETH_P_ALL},
		Fd:          program.FD(), Name: "trellis_probe", DirectAction: true,
	})
}

// probeMounts tries the file systems that nodes are made of, on a tmpfs of the
// thread's own mount namespace, over a directory that always exists.
func (f *Facts) probeMounts() {
	dir := os.TempDir()
	err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m,mode=0700")
	f.Probes[ProbeTmpfs] = err
	if err != nil {
		f.Probes[ProbeOverlay], f.Probes[ProbeBPFFS] = err, err
		return
	}
	mkdir := func(name string) string {
		path := filepath.Join(dir, name)
		if e := os.Mkdir(path, 0o700); e != nil {
			err = errors.Join(err, e)
		}
		return path
	}
	lower, upper, work, merged, bpffs := mkdir("lower"), mkdir("upper"), mkdir("work"), mkdir("merged"), mkdir("bpf")
	if err != nil {
		f.Probes[ProbeOverlay], f.Probes[ProbeBPFFS] = err, err
		return
	}
	f.Probes[ProbeOverlay] = unix.Mount("overlay", merged, "overlay", 0,
		fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", lower, upper, work))
	f.Probes[ProbeBPFFS] = unix.Mount("bpf", bpffs, "bpf", 0, "")
}

// probeUserNS starts a process in a user namespace, and maps the ids of a
// directory's mount by it. The mount is never attached anywhere.
func probeUserNS(dir string) (userNS, idMapped error) {
	child := exec.Command("cat") // waits for the end of its input
	input, err := child.StdinPipe()
	if err != nil {
		return err, err
	}
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 1000000, Size: 65536}}
	child.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids, Pdeathsig: syscall.SIGKILL,
	}
	if err := child.Start(); err != nil {
		none := fmt.Errorf("no user namespace to map by: %w", err)
		return err, none
	}
	defer func() {
		if err := errors.Join(input.Close(), child.Wait()); err != nil && userNS == nil {
			userNS = fmt.Errorf("end the process: %w", err)
		}
	}()
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", child.Process.Pid))
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	tree, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("clone the mount of %s: %w", dir, err)
	}
	defer unix.Close(tree)
	err = unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &unix.MountAttr{
		Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(ns.Fd()),
	})
	if err != nil {
		return nil, fmt.Errorf("map the ids of %s: %w", dir, err)
	}
	return nil, nil
}
