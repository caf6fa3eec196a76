package forward

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Share is a part's share of a core's time, 0 to 1.
type Share struct {
	Part  string  `json:"part"`
	Share float64 `json:"share"`
}

// symbol is where a function of the kernel begins.
type symbol struct {
	at   uint64
	name string
}

// parts say to which part a function of the kernel belongs, by the beginning of
// its name; the first that fits holds.
var parts = []struct {
	part   string
	begins []string
}{
	{"idle", []string{"default_idle", "cpuidle", "cpu_idle", "do_idle", "acpi_idle", "intel_idle", "mwait", "poll_idle", "pv_native_safe_halt", "native_safe_halt", "arch_cpu_idle", "haltpoll", "default_enter_idle", "tick_nohz"}},
	{"sink", []string{"bpf_prog:sink"}},
	{"BPF programs", []string{"bpf_prog:"}},
	{"FIB and neighbours", []string{"fib_", "__fib", "ip_route", "ip_mkroute", "rt_", "neigh_", "__neigh", "ipv4_neigh", "bpf_ipv4_fib", "bpf_xdp_fib", "bpf_skb_fib", "inet_addr", "inet_select", "l3mdev", "ipv4_dst", "dst_", "find_exception", "arp_"}},
	{"tunnels", []string{"vxlan", "udp_tunnel", "udp", "__udp", "iptunnel", "ip_tunnel", "gre_", "ipgre", "gro_cell"}},
	{"bridge", []string{"br_", "__br", "fdb_", "nbp_"}},
	{"macvlan", []string{"macvlan"}},
	{"veth", []string{"veth_", "__veth", "is_skb_forwardable", "____dev_forward_skb", "__dev_forward_skb", "dev_forward_skb"}},
	{"XDP", []string{"xdp_", "__xdp", "dev_map", "__dev_map", "bq_", "xsk_", "__xsk", "xp_", "bpf_redirect", "bpf_xdp", "do_xdp", "cpu_map"}},
	{"tc", []string{"tcf_", "tc_", "u32_", "sch_", "bpf_clone", "skb_do_redirect", "tcx_"}},
	{"BPF's maps and helpers", []string{"bpf_", "__bpf", "htab_", "array_map", "__htab", "lookup_nulls", "htab"}},
	{"netfilter", []string{"nf_", "nft_"}},
	{"IP stack", []string{"ip_", "__ip", "inet_", "ipv4_", "raw_"}},
	{"sockets and system calls", []string{"packet_", "tpacket", "sock_", "__sock", "do_sys", "__x64_sys", "x64_sys", "entry_SYSCALL", "syscall", "__sys", "ksys", "vfs_", "fget", "fdget", "do_poll", "do_sys_poll", "sys_", "ep_", "copy_", "_copy", "rep_movs", "__check_object", "import_", "skb_copy_datagram", "__skb_recv", "__skb_try"}},
	{"frames' memory", []string{"skb_", "__skb", "__alloc_skb", "alloc_skb", "__build_skb", "build_skb", "napi_build_skb", "kfree", "kmem_cache", "kmalloc", "__kmalloc", "page_pool", "__page_pool", "page_frag", "__page_frag", "consume_skb", "__slab", "___slab", "__kfree", "napi_consume", "napi_skb", "mem", "__mem", "clear_page", "free_", "__free", "get_page", "put_page", "eth_"}},
	{"softirq and queues", []string{"netif_", "__netif", "napi_", "__napi", "net_rx", "dev_", "__dev", "process_backlog", "enqueue_to_backlog", "handle_softirqs", "__do_softirq", "do_softirq", "gro_", "__raise_softirq", "raise_softirq", "validate_xmit", "__local_bh", "rps_", "sk_", "deliver_", "qdisc", "ptr_ring", "__raise"}},
	{"scheduler", []string{"__schedule", "schedule", "pick_", "enqueue_", "dequeue_", "update_", "try_to_wake", "ttwu", "__wake", "wake_", "finish_task", "__switch_to", "set_next", "put_prev", "select_task", "kthread", "smpboot"}},
	{"clock", []string{"ktime", "pvclock", "read_tsc", "kvm_clock", "sched_clock", "native_sched", "hrtimer", "__hrtimer", "tick_", "clockevents", "timekeeping"}},
}

const (
	userSpace = "user space"
	otherPart = "other"
)

// partOf says to which part a function belongs.
func partOf(name string) string {
	// bpf_prog_TAG_NAME is a program, by its name.
	if rest, ok := strings.CutPrefix(name, "bpf_prog_"); ok {
		if _, program, ok := strings.Cut(rest, "_"); ok {
			name = "bpf_prog:" + program
		}
	}
	for _, p := range parts {
		for _, b := range p.begins {
			if strings.HasPrefix(name, b) {
				return p.part
			}
		}
	}
	return otherPart
}

// readSymbols reads /proc/kallsyms.
func readSymbols(r io.Reader) ([]symbol, error) {
	var all []symbol
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) < 3 || !strings.ContainsAny(f[1], "tTwW") {
			continue
		}
		at, err := strconv.ParseUint(f[0], 16, 64)
		if err != nil {
			return nil, fmt.Errorf("read the kernel's symbols: %q", lines.Text())
		}
		if at == 0 {
			return nil, errors.New("the kernel hides where its functions are: set kernel.kptr_restrict to 1 or 0")
		}
		all = append(all, symbol{at, f[2]})
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read the kernel's symbols: %w", err)
	}
	slices.SortFunc(all, func(a, b symbol) int { return cmp.Compare(a.at, b.at) })
	return all, nil
}

// shares groups samples, addresses of instructions, by parts, the largest first.
// Addresses of user space are those of the lower half.
func shares(samples []uint64, symbols []symbol) []Share {
	counts := map[string]int{}
	for _, ip := range samples {
		if ip < 1<<63 {
			counts[userSpace]++
			continue
		}
		i, found := slices.BinarySearchFunc(symbols, ip, func(s symbol, ip uint64) int { return cmp.Compare(s.at, ip) })
		if !found {
			i--
		}
		if i < 0 {
			counts[otherPart]++
			continue
		}
		counts[partOf(symbols[i].name)]++
	}
	var all []Share
	for part, n := range counts {
		all = append(all, Share{part, float64(n) / float64(len(samples))})
	}
	slices.SortFunc(all, func(a, b Share) int {
		return cmp.Or(cmp.Compare(b.Share, a.Share), strings.Compare(a.Part, b.Part))
	})
	return all
}

// sampleCore samples a core by its clock while run runs, and says which parts of
// the kernel had its time.
func sampleCore(core int, run func() error) ([]Share, error) {
	const (
		frequency = 5000 // samples a second
		pages     = 128  // of samples, a power of two: 32768 of them
	)
	fd, err := unix.PerfEventOpen(&unix.PerfEventAttr{
		Type: unix.PERF_TYPE_SOFTWARE, Config: unix.PERF_COUNT_SW_CPU_CLOCK, Size: uint32(unsafe.Sizeof(unix.PerfEventAttr{})),
		Sample: frequency, Sample_type: unix.PERF_SAMPLE_IP, Bits: unix.PerfBitFreq | unix.PerfBitDisabled,
	}, -1, core, -1, unix.PERF_FLAG_FD_CLOEXEC)
	if err != nil {
		return nil, missing(fmt.Errorf("sample core %d: %w", core, err), "sampling of cores (perf events)", "measure without --cpu")
	}
	defer unix.Close(fd)
	page := os.Getpagesize()
	buffer, err := unix.Mmap(fd, 0, (pages+1)*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map the samples of core %d: %w", core, err)
	}
	defer func() { _ = unix.Munmap(buffer) }() // cannot fail: it is mapped
	if err := unix.IoctlSetInt(fd, unix.PERF_EVENT_IOC_ENABLE, 0); err != nil {
		return nil, fmt.Errorf("sample core %d: %w", core, err)
	}
	// While programs run: their symbols go with them.
	if err := run(); err != nil {
		return nil, err
	}
	if err := unix.IoctlSetInt(fd, unix.PERF_EVENT_IOC_DISABLE, 0); err != nil {
		return nil, fmt.Errorf("sample core %d: %w", core, err)
	}
	head := atomic.LoadUint64(&(*unix.PerfEventMmapPage)(unsafe.Pointer(&buffer[0])).Data_head)
	samples := parseSamples(buffer[page:], head)
	if len(samples) == 0 {
		return nil, fmt.Errorf("core %d has given no samples", core)
	}
	kallsyms, err := os.Open("/proc/kallsyms")
	if err != nil {
		return nil, fmt.Errorf("read the kernel's symbols: %w", err)
	}
	defer kallsyms.Close()
	symbols, err := readSymbols(kallsyms)
	if err != nil {
		return nil, err
	}
	return shares(samples, symbols), nil
}

// parseSamples reads what a ring of perf events holds from its start to head,
// where it has not wrapped: records of struct perf_event_header, samples with the
// instruction's address.
func parseSamples(data []byte, head uint64) []uint64 {
	var all []uint64
	end := min(head, uint64(len(data)))
	for at := uint64(0); at+16 <= end; {
		kind := binary.NativeEndian.Uint32(data[at:])
		size := uint64(binary.NativeEndian.Uint16(data[at+6:]))
		if size < 8 {
			break
		}
		if kind == unix.PERF_RECORD_SAMPLE && size == 16 {
			all = append(all, binary.NativeEndian.Uint64(data[at+8:]))
		}
		at += size
	}
	return all
}
