// Package nodeinit carries the PID 1 of virtual nodes: a small freestanding C
// program (init.c says what it does), committed as built so that neither users
// nor the Go toolchain need a C compiler.
//
// After a change of the C source: go generate ./init, which needs clang and lld.
package nodeinit

//go:generate make --always-make all
