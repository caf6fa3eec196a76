/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The few system calls of the node's init, for Linux on amd64 and arm64,
 * without a C library. Each returns what the kernel returns: -errno on failure.
 * Numbers: arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h.
 */
#ifndef TRELLIS_INIT_SYS_H
#define TRELLIS_INIT_SYS_H

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long u64;
typedef long i64;

#if defined(__x86_64__)
enum {
	NR_read = 0, NR_write = 1, NR_close = 3, NR_rt_sigprocmask = 14, NR_pread64 = 17,
	NR_pwrite64 = 18, NR_clone = 56, NR_execve = 59, NR_wait4 = 61, NR_kill = 62,
	NR_fcntl = 72, NR_ftruncate = 77, NR_chdir = 80, NR_setuid = 105, NR_setgid = 106, NR_setsid = 112,
	NR_setgroups = 116, NR_prctl = 157, NR_clock_gettime = 228, NR_exit_group = 231,
	NR_openat = 257, NR_unlinkat = 263, NR_faccessat = 269, NR_ppoll = 271, NR_signalfd4 = 289, NR_dup3 = 292,
	NR_pipe2 = 293, NR_keyctl = 250, NR_renameat2 = 316, NR_setresuid = 117, NR_mount = 165, NR_unshare = 272,
	NR_prlimit64 = 302, NR_statx = 332,
};
#elif defined(__aarch64__)
enum {
	NR_dup3 = 24, NR_fcntl = 25, NR_unlinkat = 35, NR_ftruncate = 46, NR_faccessat = 48, NR_chdir = 49, NR_openat = 56,
	NR_close = 57, NR_pipe2 = 59, NR_read = 63, NR_write = 64, NR_pread64 = 67,
	NR_pwrite64 = 68, NR_ppoll = 73, NR_signalfd4 = 74, NR_exit_group = 94,
	NR_clock_gettime = 113, NR_kill = 129, NR_rt_sigprocmask = 135, NR_setgid = 144,
	NR_setuid = 146, NR_setsid = 157, NR_setgroups = 159, NR_prctl = 167, NR_clone = 220,
	NR_execve = 221, NR_wait4 = 260, NR_keyctl = 219, NR_renameat2 = 276, NR_setresuid = 147, NR_mount = 40, NR_unshare = 97,
	NR_prlimit64 = 261, NR_statx = 291,
};
#else
#error "the node's init knows amd64 and arm64"
#endif

enum {
	AT_FDCWD = -100,
	O_RDONLY = 0, O_WRONLY = 1, O_RDWR = 2, O_CREAT = 0100, O_APPEND = 02000, O_NONBLOCK = 04000,
	O_CLOEXEC = 02000000,
#if defined(__x86_64__)
	O_NOFOLLOW = 0400000,
#else
	O_NOFOLLOW = 0100000,
#endif
	SIGHUP = 1, SIGKILL = 9, SIGTERM = 15, SIGCHLD = 17,
	SIG_BLOCK = 0, SIG_UNBLOCK = 1,
	EINTR = 4, EAGAIN = 11,
	WNOHANG = 1,
	POLLIN = 1,
	F_SETFL = 4,
	PR_SET_DUMPABLE = 4, PR_SET_SECUREBITS = 28, SECBIT_NO_SETUID_FIXUP = 4,
	CLONE_NEWUSER = 0x10000000,
	MS_BIND = 4096,
	RLIMIT_SIGPENDING = 11, RLIMIT_MSGQUEUE = 12,
	KEYCTL_JOIN_SESSION_KEYRING = 1,
};

struct timespec { i64 sec, nsec; };
struct pollfd { int fd; short events, revents; };

static inline i64 sys(i64 nr, i64 a, i64 b, i64 c, i64 d, i64 e)
{
#if defined(__x86_64__)
	i64 ret;
	register i64 r10 __asm__("r10") = d;
	register i64 r8 __asm__("r8") = e;
	__asm__ volatile("syscall"
			 : "=a"(ret)
			 : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8)
			 : "rcx", "r11", "memory");
	return ret;
#else
	register i64 x8 __asm__("x8") = nr;
	register i64 x0 __asm__("x0") = a;
	register i64 x1 __asm__("x1") = b;
	register i64 x2 __asm__("x2") = c;
	register i64 x3 __asm__("x3") = d;
	register i64 x4 __asm__("x4") = e;
	__asm__ volatile("svc 0"
			 : "+r"(x0)
			 : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4)
			 : "memory");
	return x0;
#endif
}

#define SYS1(n, a) sys(NR_##n, (i64)(a), 0, 0, 0, 0)
#define SYS2(n, a, b) sys(NR_##n, (i64)(a), (i64)(b), 0, 0, 0)
#define SYS3(n, a, b, c) sys(NR_##n, (i64)(a), (i64)(b), (i64)(c), 0, 0)
#define SYS4(n, a, b, c, d) sys(NR_##n, (i64)(a), (i64)(b), (i64)(c), (i64)(d), 0)
#define SYS5(n, a, b, c, d, e) sys(NR_##n, (i64)(a), (i64)(b), (i64)(c), (i64)(d), (i64)(e))

/* The kernel enters here; argc, argv and the environment are at the stack pointer. */
#if defined(__x86_64__)
__asm__(".globl _start\n_start:\n\txor %ebp, %ebp\n\tmov %rsp, %rdi\n\tand $-16, %rsp\n\tcall run\n\thlt\n");
#else
__asm__(".globl _start\n_start:\n\tmov x0, sp\n\tmov x29, #0\n\tmov x30, #0\n\tbl run\n\tbrk #0\n");
#endif

/* Clang may call these on its own. */
void *memset(void *p, int c, u64 n)
{
	for (u8 *q = p; n--;)
		*q++ = (u8)c;
	return p;
}

void *memcpy(void *to, const void *from, u64 n)
{
	u8 *t = to;
	for (const u8 *f = from; n--;)
		*t++ = *f++;
	return to;
}

#endif
