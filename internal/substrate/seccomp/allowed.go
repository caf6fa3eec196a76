package seccomp

// allowed are the calls that any program may make, by what they are for. Names
// that an architecture lacks are passed over by the runtime.
var allowed = []string{
	// Files and directories.
	"access", "chdir", "chmod", "chown", "close", "close_range", "copy_file_range", "creat", "dup",
	"dup2", "dup3", "faccessat", "faccessat2", "fadvise64", "fallocate", "fchdir", "fchmod",
	"fchmodat", "fchmodat2", "fchown", "fchownat", "fcntl", "fdatasync", "fgetxattr", "flistxattr",
	"flock", "fremovexattr", "fsetxattr", "fstat", "fstatfs", "fsync", "ftruncate", "futimesat",
	"getcwd", "getdents", "getdents64", "getxattr", "getxattrat", "ioctl", "lchown", "lgetxattr",
	"link", "linkat", "listxattr", "listxattrat", "llistxattr", "lremovexattr", "lseek",
	"lsetxattr", "lstat", "mkdir", "mkdirat", "mknod", "mknodat", "newfstatat", "open", "openat",
	"openat2", "pread64", "preadv", "preadv2", "pwrite64", "pwritev", "pwritev2", "read",
	"readahead", "readlink", "readlinkat", "readv", "removexattr", "removexattrat", "rename",
	"renameat", "renameat2", "rmdir", "sendfile", "setxattr", "setxattrat", "splice", "stat",
	"statfs", "statx", "symlink", "symlinkat", "sync", "sync_file_range", "syncfs", "tee",
	"truncate", "umask", "unlink", "unlinkat", "utime", "utimensat", "utimes", "vmsplice", "write",
	"writev",
	// Waiting for files and events.
	"epoll_create", "epoll_create1", "epoll_ctl", "epoll_ctl_old", "epoll_pwait", "epoll_pwait2",
	"epoll_wait", "epoll_wait_old", "eventfd", "eventfd2", "inotify_add_watch", "inotify_init",
	"inotify_init1", "inotify_rm_watch", "pipe", "pipe2", "poll", "ppoll", "pselect6", "select", "signalfd",
	"signalfd4", "timerfd_create", "timerfd_gettime", "timerfd_settime",
	// Memory.
	"brk", "madvise", "map_shadow_stack", "membarrier", "memfd_create", "mincore", "mlock",
	"mlock2", "mlockall", "mmap", "mprotect", "mremap", "mseal", "msync", "munlock", "munlockall",
	"munmap", "pkey_alloc", "pkey_free", "pkey_mprotect", "process_mrelease", "remap_file_pages",
	// Processes and threads.
	"arch_prctl", "capget", "capset", "execve", "execveat", "exit", "exit_group", "fork", "futex",
	"futex_requeue", "futex_wait", "futex_waitv", "futex_wake", "get_robust_list",
	"get_thread_area", "getcpu", "getegid", "geteuid", "getgid", "getgroups", "getpgid", "getpgrp",
	"getpid", "getppid", "getpriority", "getresgid", "getresuid", "getrlimit", "getrusage",
	"getsid", "gettid", "getuid", "ioprio_get", "ioprio_set", "kill", "landlock_add_rule",
	"landlock_create_ruleset", "landlock_restrict_self", "pause", "pidfd_open",
	"pidfd_send_signal", "prlimit64", "rseq", "rt_sigaction", "rt_sigpending",
	"rt_sigprocmask", "rt_sigqueueinfo", "rt_sigreturn", "rt_sigsuspend", "rt_sigtimedwait",
	"rt_tgsigqueueinfo", "sched_get_priority_max", "sched_get_priority_min", "sched_getaffinity",
	"sched_getattr", "sched_getparam", "sched_getscheduler", "sched_rr_get_interval",
	"sched_setaffinity", "sched_setattr", "sched_setparam", "sched_setscheduler", "sched_yield",
	"set_robust_list", "set_thread_area", "set_tid_address", "setfsgid", "setfsuid",
	"setgid", "setgroups", "setpgid", "setpriority", "setregid", "setresgid", "setresuid",
	"setreuid", "setrlimit", "setsid", "setuid", "sigaltstack", "tgkill", "tkill", "vfork",
	"wait4", "waitid", "restart_syscall", "uretprobe",
	// Time.
	"alarm", "clock_getres", "clock_gettime", "clock_nanosleep", "getitimer", "gettimeofday",
	"nanosleep", "setitimer", "time", "timer_create", "timer_delete", "timer_getoverrun",
	"timer_gettime", "timer_settime", "times",
	// Sockets; which may be made and set up how, sockets.go says.
	"accept", "accept4", "bind", "connect", "getpeername", "getsockname", "getsockopt", "listen",
	"recvfrom", "recvmmsg", "recvmsg", "sendmmsg", "sendmsg", "sendto", "shutdown",
	// Communication inside the node's IPC namespace.
	"mq_getsetattr", "mq_notify", "mq_open", "mq_timedreceive", "mq_timedsend", "mq_unlink",
	"msgctl", "msgget", "msgrcv", "msgsnd", "semctl", "semget", "semop", "semtimedop", "shmat",
	"shmctl", "shmdt", "shmget",
	// The system, to look at, and the node's own name.
	"getrandom", "setdomainname", "sethostname", "sysinfo", "uname",
}
