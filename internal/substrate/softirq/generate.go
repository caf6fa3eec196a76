package softirq

// The program is compiled by clang and committed, as package dataplane's.
//
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang -strip llvm-strip -target bpfel -cflags "-O2 -g -Wall -Wextra -Werror -mcpu=v3 -I../../../bpf/include" -type device -type use progs ../../../bpf/softirq.bpf.c
