package dataplane

// The programs are compiled by clang and committed, so that building Trellis
// needs no compiler for BPF. After a change in bpf/:
//
//	go generate ./internal/substrate/dataplane
//
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang -strip llvm-strip -target bpfel -cflags "-O2 -g -Wall -Wextra -Werror -mcpu=v3 -I../../../bpf/include" -type port -type traffic -type mode -type drop_reason portProgs ../../../bpf/port.bpf.c
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang -strip llvm-strip -target bpfel -cflags "-O2 -g -Wall -Wextra -Werror -mcpu=v3 -I../../../bpf/include" -no-global-types lanProgs ../../../bpf/lan.bpf.c
