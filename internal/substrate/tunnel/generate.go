package tunnel

// The programs are compiled by clang and committed, so that building Trellis
// needs no compiler for BPF. After a change in bpf/:
//
//	go generate ./internal/substrate/tunnel
//
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang -strip llvm-strip -target bpfel -cflags "-O2 -g -Wall -Wextra -Werror -mcpu=v3 -I../../../bpf/include" -type tunnel_drop -type arrival_key -type arrival -type end_kind -type end_key -type end -type tunnel_traffic stackProgs ../../../bpf/tunnel.bpf.c
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang -strip llvm-strip -target bpfel -cflags "-O2 -g -Wall -Wextra -Werror -mcpu=v3 -I../../../bpf/include" -no-global-types uplinkProgs ../../../bpf/uplink.bpf.c
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang -strip llvm-strip -target bpfel -cflags "-O2 -g -Wall -Wextra -Werror -mcpu=v3 -I../../../bpf/include" -no-global-types fastProgs ../../../bpf/fast.bpf.c
