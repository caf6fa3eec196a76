package confine

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang -strip llvm-strip -target bpfel -cflags "-O2 -g -Wall -Wextra -Werror -mcpu=v3 -I../../../bpf/include" -type socket_charge -type charge -type ceiling -type sysctl_name progs ../../../bpf/confine.bpf.c
