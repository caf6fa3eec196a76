package dataplane

// The programs are compiled by clang and committed, so that building Trellis
// needs no compiler for BPF. After a change in bpf/:
//
//	go generate ./internal/substrate/dataplane
//
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang -strip llvm-strip -target bpfel -cflags "-O2 -g -Wall -Wextra -Werror -mcpu=v3 -I../../../bpf/include" -type port -type traffic -type dropped -type mode -type drop_reason -type egress -type egress_key -type egress_flag -type rate -type class -type rate_flag portProgs ../../../bpf/port.bpf.c
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang -strip llvm-strip -target bpfel -cflags "-O2 -g -Wall -Wextra -Werror -mcpu=v3 -I../../../bpf/include" -no-global-types lanProgs ../../../bpf/lan.bpf.c
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang -strip llvm-strip -target bpfel -cflags "-O2 -g -Wall -Wextra -Werror -mcpu=v3 -I../../../bpf/include" -no-global-types -type cut_end -type tunnel -type uplink -type uplink_mode -type uplink_flag uplinkProgs ../../../bpf/uplink.bpf.c
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang -strip llvm-strip -target bpfel -cflags "-O2 -g -Wall -Wextra -Werror -mcpu=v3 -I../../../bpf/include" -no-global-types -type copied -type tap_direction -type stack_counts -type stack_reason fastProgs ../../../bpf/fast.bpf.c
