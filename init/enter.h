/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the agent runs before the container runtime, outside of the node: it enters the
 * node's cgroups and makes its user namespace.
 */
#ifndef TRELLIS_INIT_ENTER_H
#define TRELLIS_INIT_ENTER_H

#include "sys.h"
#include "text.h"

static void print_error(const char *s)
{
	SYS3(write, 2, s, length(s));
}

static i64 argument(const char *a)
{
	struct strings at = {a, a + length(a) + 1};
	return next_number(&at);
}

static __attribute__((noreturn)) void give_up(const char *why)
{
	print_error(why);
	SYS1(exit_group, 125);
	__builtin_unreachable();
}

/* map_ids writes 65,536 ids from base on into a map of the process, "uid" or "gid". */
static void map_ids(i64 pid, const char *kind, i64 base)
{
	char path[64], map[64];
	*put(put(put(number(put(path, "/proc/"), (u64)pid), "/"), kind), "_map") = 0;
	char *end = put(number(put(map, "0 "), (u64)base), " 65536\n");
	i64 fd = SYS3(openat, AT_FDCWD, path, O_WRONLY);
	if (fd < 0 || SYS3(write, fd, map, end - map) != end - map)
		give_up("cannot map the ids of the node\n");
	SYS1(close, fd);
}

/*
 * own_namespace makes the node's user namespace, and mounts it on the file. It is made
 * by the user id owner, so that what the kernel counts by user and user namespace
 * (inotify instances, namespaces, signals and timers, message queues) is counted as
 * that id's, and not as root's; and with limits on the last two, which bind all of
 * the node together (set_userns_rlimit_max in kernel/user_namespace.c).
 */
static void own_namespace(i64 owner, i64 base, const char *file)
{
	int made[2], go[2];
	u64 signals[2] = {4096, 4096}, queues[2] = {800 << 10, 800 << 10};
	char path[64], byte;
	if (SYS2(pipe2, made, O_CLOEXEC) < 0 || SYS2(pipe2, go, O_CLOEXEC) < 0)
		give_up("cannot make a pipe\n");
	i64 pid = SYS5(clone, SIGCHLD, 0, 0, 0, 0);
	if (pid < 0)
		give_up("cannot make the user namespace of the node: no process\n");
	if (pid == 0) {
		SYS1(close, go[1]);
		SYS4(prlimit64, 0, RLIMIT_SIGPENDING, signals, 0);
		SYS4(prlimit64, 0, RLIMIT_MSGQUEUE, queues, 0);
		/* So that the change of the id takes no capability: some machines ask for one to unshare. */
		SYS2(prctl, PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP);
		if (!SYS3(setresuid, -1, owner, -1) && !SYS1(unshare, CLONE_NEWUSER) && SYS3(write, made[1], "", 1) == 1)
			SYS3(read, go[0], &byte, 1); /* until it is mounted */
		SYS1(exit_group, 0);
	}
	SYS1(close, made[1]);
	if (SYS3(read, made[0], &byte, 1) != 1)
		give_up("cannot make the user namespace of the node\n");
	map_ids(pid, "uid", base);
	map_ids(pid, "gid", base);
	*put(number(put(path, "/proc/"), (u64)pid), "/ns/user") = 0;
	if (SYS5(mount, path, file, 0, MS_BIND, 0))
		give_up("cannot mount the user namespace of the node\n");
	SYS1(close, made[0]);
	SYS1(close, go[0]);
	SYS1(close, go[1]);
	SYS4(wait4, pid, 0, 0, 0);
}

/*
 * enter, "init enter FIRST N OWNER BASE FILE PROGRAM ARGUMENT…", is another use of the
 * same binary, by the agent and outside of the node: it joins the cgroups whose N files
 * are open from FIRST on, makes a user namespace unless FILE is no path, and becomes
 * the program. A thread of the agent could join and fork, but would be throttled with the
 * node while it holds the agent's locks.
 */
static void enter(char **args)
{
	i64 first = argument(args[0]), n = argument(args[1]), owner = argument(args[2]), base = argument(args[3]);
	const char *file = args[4];
	args += 5;
	char **env = args;
	while (*env)
		env++;
	/*
	 * A session keyring of its own, without a name: the runtime would look its
	 * name up among those of all nodes. The nodes' seccomp filter denies what
	 * uses keyrings, so that a kernel without them lacks nothing.
	 */
	SYS2(keyctl, KEYCTL_JOIN_SESSION_KEYRING, 0);
	for (i64 fd = first; fd < first + n; fd++) {
		if (SYS3(write, fd, "0", 1) != 1)
			give_up("cannot join the cgroup of the node\n");
		SYS1(close, fd);
	}
	if (file[0] == '/')
		own_namespace(owner, base, file);
	SYS3(execve, args[0], args, env + 1);
	give_up("cannot run the container runtime\n");
}

#endif
