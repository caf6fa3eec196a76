//go:build ignore

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PID 1 of a virtual node.
 *
 * It is handed three open files by the agent:
 *
 *	3  a pipe that the agent holds the other end of, shared by all nodes: its end
 *	   before go means exit
 *	4  the status file, rewritten in place at each change
 *	5  the service table, read at the start and at each SIGHUP; the first valid
 *	   one means go
 *
 * After go it starts the services of the table, reaps whatever ends in the
 * node, and starts services again that end, with a pause that doubles from
 * 0.1 s to 30 s and starts afresh after a run of 10 s. With a daemon that waits
 * for nothing, those that wait for a path start again too. SIGTERM stops all and
 * exits. Files 3 to 5 are the host's; they are closed in every child, and init
 * is not dumpable, so that nothing in the node reaches them through /proc/1.
 *
 * The table is a list of strings, each ended by a NUL: "trellis-services-2",
 * the number of services, and for each:
 *
 *	name
 *	kind: "d" a daemon; "p" a daemon that is left out where its program is not
 *		there; "o" runs once; "f" starts again if it fails; "l" loads the
 *		daemons' configuration, see below
 *	generation: any change restarts the service
 *	uid, gid, working directory
 *	path to wait for before starting ("" none; at most 60 s): it is there, and
 *		listens if it is a socket
 *	path by which it is ready for its configuration ("" it is not loaded)
 *	number of arguments, the arguments, number of variables, the variables
 *
 * Of kind "l" there is one at most. It runs once all daemons that are loaded are
 * ready, or have been waited for 60 s: for all of them together as it stands, and
 * for one that has started anew with two arguments more, "-d NAME".
 *
 * The status is text: "trellis-status-1 SEQ", a line "name state pid restarts
 * exit" for each service, "end SEQ". A reader that finds the two SEQ differ
 * reads again.
 *
 * What a service prints, and how it ended, is in /run/trellis/NAME.log, and in
 * NAME.log.1 what was there before that grew to MAX_LOG.
 */
#include "sys.h"
#include "text.h"
#include "enter.h"

enum {
	GATE = 3, STATUS = 4, TABLE = 5,
	MAX_SERVICES = 40,
	MAX_TABLE = 64 << 10,
	MAX_LOG = 16 << 10,
	NAME = 32,
	FIRST_PAUSE = 100, LAST_PAUSE = 30000, LONG_RUN = 10000, /* ms */
	STOP_TIME = 5000, READY_TIME = 60000,			 /* ms */
	READY_POLL = 10, SLOW_POLL = 100, SLOW_AFTER = 1000,	 /* ms */
};

enum state { FREE, WAITING, RUNNING, STOPPING, EXITED };

struct service {
	char name[NAME];
	const char *record; /* of the current table; what follows the name */
	u32 length;
	enum state state;
	char kind; /* see above */
	u8 removed;
	u8 unloaded; /* runs, and waits for its configuration */
	int pid, log; /* log: our end of the pipe that it writes to, or -1 */
	u32 logged, restarts, pause;
	int exit;
	u64 since; /* ms: start of the run */
	u64 due;   /* ms: when to start (WAITING) or kill (STOPPING) */
	u64 ready; /* ms: until when to wait for its path; 0 not yet waiting */
};

static struct service services[MAX_SERVICES];
static char tables[2][MAX_TABLE];
static int current, loaded, stopping;
static u64 sequence;

static u64 now(void)
{
	struct timespec t = {0, 0};
	SYS2(clock_gettime, 1 /* CLOCK_MONOTONIC */, &t);
	return (u64)t.sec * 1000 + (u64)t.nsec / 1000000;
}

/* write_status reports, if there is anything new: the agent is woken by each report. */
static void write_status(void)
{
	static const char *const words[] = {"free", "backoff", "running", "stopping", "exited"};
	static char text[4096], bodies[2][4000]; /* MAX_SERVICES lines of 96 bytes at most, and two more */
	static u64 last = ~0UL;
	static int turn;
	char *body = bodies[turn], *p = body;
	for (struct service *s = services; s < services + MAX_SERVICES; s++) {
		if (s->state == FREE)
			continue;
		p = put(p, s->name);
		*p++ = ' ';
		p = put(p, s->state == WAITING && s->ready ? "waiting" : s->state == RUNNING && s->unloaded ? "loading" : words[s->state]);
		*p++ = ' ';
		p = number(p, (u64)s->pid);
		*p++ = ' ';
		p = number(p, s->restarts);
		*p++ = ' ';
		p = number(p, (u64)s->exit);
		*p++ = '\n';
	}
	u64 size = (u64)(p - body);
	if (size == last && same(body, bodies[!turn], size))
		return;
	last = size;
	turn = !turn;
	p = put(text, "trellis-status-1 ");
	p = number(p, ++sequence);
	*p++ = '\n';
	memcpy(p, body, size);
	p = put(p + size, "end ");
	p = number(p, sequence);
	*p++ = '\n';
	SYS4(pwrite64, STATUS, text, p - text, 0);
	SYS2(ftruncate, STATUS, p - text);
}

/* log_path writes /run/trellis/NAME.log and the suffix. */
static void log_path(const struct service *s, char *path, const char *suffix)
{
	*put(put(put(put(path, "/run/trellis/"), s->name), ".log"), suffix) = 0;
}

/*
 * append writes to a service's log; a full one becomes the previous one. The
 * file is opened anew each time: the node may remove or replace it.
 */
static void append(struct service *s, const char *data, u64 n)
{
	char path[NAME + 32], previous[NAME + 32];
	log_path(s, path, "");
	if (s->logged + n > MAX_LOG) {
		log_path(s, previous, ".1");
		SYS5(renameat2, AT_FDCWD, path, AT_FDCWD, previous, 0);
		s->logged = 0;
	}
	i64 fd = SYS4(openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644);
	if (fd < 0)
		return;
	SYS3(write, fd, data, n);
	s->logged += (u32)n;
	SYS1(close, fd);
}

/* drain moves what a service wrote into its log; false: there is no more for now. */
static int drain(struct service *s)
{
	static char data[4096];
	i64 n = SYS3(read, s->log, data, sizeof(data));
	if (n == -EAGAIN || n == -EINTR)
		return 0;
	if (n <= 0) {
		SYS1(close, s->log);
		s->log = -1;
		return 0;
	}
	append(s, data, (u64)n);
	return 1;
}

/* execute replaces the process by the service's program, sought in PATH. */
static void execute(const char *const *argv, const char *const *env)
{
	static char path[4096];
	const char *dirs = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
	for (const char *c = argv[0]; *c; c++)
		if (*c == '/') {
			SYS3(execve, argv[0], argv, env);
			return;
		}
	for (const char *const *e = env; *e; e++)
		if (length(*e) >= 5 && same(*e, "PATH=", 5))
			dirs = *e + 5;
	while (*dirs) {
		char *p = path;
		for (; *dirs && *dirs != ':'; dirs++)
			if (p < path + 2048)
				*p++ = *dirs;
		if (*dirs)
			dirs++;
		*p++ = '/';
		if (length(argv[0]) < 1024) {
			*put(p, argv[0]) = 0;
			SYS3(execve, path, argv, env);
		}
	}
}

/*
 * child becomes the service; it runs in the new process and does not return.
 * only: the name of the one daemon that a loader is to load, or 0.
 */
static void child(const struct service *s, int log, const char *only)
{
	static const char *argv[MAX_STRINGS + 3], *env[MAX_STRINGS + 1];
	struct strings at = {s->record, s->record + s->length};
	u64 all = ~0UL;
	next(&at); /* kind */
	next(&at); /* generation */
	i64 uid = next_number(&at), gid = next_number(&at);
	const char *dir = next(&at);
	next(&at); /* what it waited for */
	next(&at); /* what tells that it is ready */
	i64 n = next_number(&at), end = n;
	for (i64 i = 0; i < n; i++)
		argv[i] = next(&at);
	if (only) {
		argv[end++] = "-d";
		argv[end++] = only;
	}
	argv[end] = 0;
	n = next_number(&at);
	for (i64 i = 0; i < n; i++)
		env[i] = next(&at);

	SYS1(setsid, 0);
	/* Out of memory, the kernel kills a service before init, and with it the node. */
	i64 fd = SYS3(openat, AT_FDCWD, "/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
	if (fd >= 0)
		SYS3(write, fd, "400", 3);
	SYS3(dup3, log, 1, 0);
	SYS3(dup3, log, 2, 0);
	SYS1(close, GATE);
	SYS1(close, STATUS);
	SYS1(close, TABLE);
	SYS4(rt_sigprocmask, SIG_UNBLOCK, &all, 0, sizeof(all));
	if (uid || gid) {
		u32 group = (u32)gid;
		if (SYS2(setgroups, 1, &group) || SYS1(setgid, gid) || SYS1(setuid, uid)) {
			print_error("trellis: cannot become the image's user\n");
			SYS1(exit_group, 126);
		}
	}
	if (SYS1(chdir, dir))
		print_error("trellis: the working directory is missing\n");
	else
		execute(argv, env);
	print_error("trellis: cannot run ");
	print_error(argv[0]);
	print_error("\n");
	SYS1(exit_group, 127);
}

static void schedule_retry(struct service *s)
{
	s->state = WAITING;
	s->due = now() + s->pause;
	s->pause = s->pause * 2 > LAST_PAUSE ? LAST_PAUSE : s->pause * 2;
}

/* field gives a string of a service's record by its place, the kind being at 0. */
static const char *field(const struct service *s, int place)
{
	struct strings at = {s->record, s->record + s->length};
	while (place--)
		next(&at);
	return next(&at);
}

/* wait_path is the path that a service waits for, "" if none. */
static const char *wait_path(const struct service *s) { return field(s, 5); }

/* ready_path is the path that tells that a daemon can be loaded; "": it is not. */
static const char *ready_path(const struct service *s) { return field(s, 6); }

static int exists(const char *path) { return !SYS3(faccessat, AT_FDCWD, path, 0); }

static int is_socket(const char *path)
{
	static unsigned short info[128]; /* struct statx, 256 bytes; stx_mode is at byte 28 */
	return !SYS5(statx, AT_FDCWD, path, 0, 1 /* STATX_TYPE */, info) && (info[14] & 0170000) == 0140000;
}

/*
 * listens reports whether a line of /proc/net/unix,
 * "Num: RefCount Protocol Flags Type St Inode Path", is of a listening socket of that
 * name: the directory may have been given in another way.
 */
static int listens(const char *line, const char *end, const char *name)
{
	const char *last = end;
	int spaces = 0;
	while (last > line && last[-1] != '/')
		last--;
	if (length(name) != (u64)(end - last) || !same(last, name, (u64)(end - last)))
		return 0;
	for (; line < last && spaces < 3; line++)
		spaces += *line == ' ';
	return same(line, "00010000", 8); /* __SO_ACCEPTCON */
}

/*
 * ready reports whether a path is there and, if it is a socket, takes connections:
 * between bind and listen it refuses them, and FRR's daemons try again only after
 * seconds, in which bgpd takes sessions without knowing their interface (bgp_zebra.c,
 * bgp_zebra_nexthop_set), and then no IPv6 route of them.
 */
static int ready(const char *path)
{
	static char buffer[8192];
	const char *name = path;
	u64 have = 0;
	int found = 0;
	i64 n, fd;
	if (!exists(path))
		return 0;
	if (!is_socket(path) || (fd = SYS4(openat, AT_FDCWD, "/proc/net/unix", O_RDONLY | O_CLOEXEC, 0)) < 0)
		return 1;
	for (const char *c = path; *c; c++)
		if (*c == '/')
			name = c + 1;
	while (!found && (n = SYS3(read, fd, buffer + have, sizeof(buffer) - have)) > 0) {
		const char *line = buffer, *end = buffer + have + n;
		for (const char *c = line; c < end && !found; c++)
			if (*c == '\n') {
				found = listens(line, c, name);
				line = c + 1;
			}
		have = (u64)(end - line);
		if (have == sizeof(buffer))
			have = 0;
		memcpy(buffer, line, have);
	}
	SYS1(close, fd);
	return found;
}

/* poll_pause gives after how long to look again for what was first looked for at since. */
static u64 poll_pause(u64 since)
{
	return now() > since + SLOW_AFTER ? SLOW_POLL : READY_POLL;
}

/* spawn starts a service's process; for only, see child. */
static void spawn(struct service *s, const char *only)
{
	int ends[2];
	if (SYS2(pipe2, ends, O_CLOEXEC)) {
		schedule_retry(s);
		return;
	}
	i64 pid = sys(NR_clone, SIGCHLD, 0, 0, 0, 0);
	if (pid == 0)
		child(s, ends[1], only);
	SYS1(close, ends[1]);
	if (pid < 0) { /* the node is out of processes or of memory */
		SYS1(close, ends[0]);
		schedule_retry(s);
		return;
	}
	if (s->log >= 0)
		SYS1(close, s->log);
	/* Its other end may outlive the service: init must never wait for it. */
	SYS3(fcntl, ends[0], F_SETFL, O_NONBLOCK);
	s->log = ends[0];
	s->pid = (int)pid;
	s->since = now();
	s->state = RUNNING;
}

static void start(struct service *s)
{
	const char *path = wait_path(s);
	if (*path && !ready(path)) {
		if (!s->ready)
			s->ready = now() + READY_TIME;
		if (now() < s->ready) {
			s->due = now() + poll_pause(s->ready - READY_TIME);
			return;
		}
	}
	s->ready = 0;
	path = ready_path(s);
	if (*path)
		SYS3(unlinkat, AT_FDCWD, path, 0); /* one that it has left behind */
	spawn(s, 0);
	s->unloaded = *path && s->state == RUNNING;
}

/*
 * load_daemons has the loader run for daemons that have started, and returns the
 * milliseconds until it is to be tried again, or -1.
 */
static i64 load_daemons(void)
{
	struct service *loader = 0, *first = 0;
	int pending = 0, loaded = 0, later = 0;
	u64 t = now();
	for (struct service *s = services; s < services + MAX_SERVICES; s++) {
		if (s->state == FREE || s->removed)
			continue;
		if (s->kind == 'l')
			loader = s;
		if (!*ready_path(s))
			continue;
		if (s->state == RUNNING && !s->unloaded)
			loaded++;
		else if (s->state == RUNNING) {
			if (!ready(ready_path(s)) && t < s->since + READY_TIME)
				later = 1;
			first = first ? first : s;
			pending++;
		} else if (s->state == WAITING && !s->restarts)
			later = 1; /* it starts in a moment */
	}
	if (!loader || !pending || loader->state == RUNNING || loader->state == STOPPING)
		return -1;
	if (later)
		return (i64)poll_pause(first ? first->since : t);
	int all = !loaded && pending > 1;
	spawn(loader, all ? 0 : first->name);
	if (loader->state != RUNNING)
		return loader->pause;
	for (struct service *s = services; s < services + MAX_SERVICES; s++)
		if (all || s == first)
			s->unloaded = 0;
	return -1;
}

static void stop(struct service *s)
{
	if (s->state == RUNNING) {
		SYS2(kill, -s->pid, SIGTERM);
		s->state = STOPPING;
		s->due = now() + STOP_TIME;
	}
}

static void release(struct service *s)
{
	if (s->log >= 0)
		SYS1(close, s->log);
	s->log = -1;
	s->state = FREE;
}

/*
 * restart_dependents starts anew what waits for a path, since the daemon that makes the
 * path has ended: FRR's protocol daemons do not send a new zebra their routes again.
 * The stale path goes, so that they wait for the new one.
 */
static void restart_dependents(void)
{
	for (struct service *s = services; s < services + MAX_SERVICES; s++) {
		if (s->state == FREE || !*wait_path(s))
			continue;
		SYS3(unlinkat, AT_FDCWD, wait_path(s), 0);
		stop(s);
	}
}

/* log_exit adds to a service's log how it ended. */
static void log_exit(struct service *s)
{
	char text[64], *p = put(text, s->exit > 128 ? "trellis: ended by signal " : "trellis: ended with status ");
	p = number(p, (u64)(s->exit > 128 ? s->exit - 128 : s->exit));
	*p++ = '\n';
	append(s, text, (u64)(p - text));
}

static void service_exited(struct service *s, int status)
{
	int asked = s->state == STOPPING, again;
	u64 t = now();
	s->exit = status & 0x7f ? 128 + (status & 0x7f) : status >> 8 & 0xff;
	again = s->kind == 'd' || s->kind == 'p' || (s->kind == 'f' && s->exit) || (asked && s->kind != 'l');
	if (again)
		SYS2(kill, -s->pid, SIGKILL); /* what is left of its session */
	for (int i = 0; i < MAX_LOG / 4096 && s->log >= 0 && drain(s); i++)
		;
	if (!asked && (s->kind != 'l' || s->exit))
		log_exit(s);
	s->pid = 0;
	s->unloaded = 0;
	if (s->removed || stopping) {
		release(s);
		return;
	}
	if (!again) {
		s->state = EXITED;
		return;
	}
	if (!*wait_path(s) && s->kind != 'p') /* mgmtd is waited for by none */
		restart_dependents();
	s->restarts++;
	if (asked || t - s->since >= LONG_RUN)
		s->pause = FIRST_PAUSE;
	if (asked) {
		s->state = WAITING;
		s->due = t;
	} else
		schedule_retry(s);
}

static void reap(void)
{
	int status;
	i64 pid;
	while ((pid = SYS4(wait4, -1, &status, WNOHANG, 0)) > 0)
		for (struct service *s = services; s < services + MAX_SERVICES; s++)
			if (s->pid == pid && s->state != FREE)
				service_exited(s, status);
}

static struct service *find(const char *name)
{
	u64 n = length(name) + 1;
	for (struct service *s = services; s < services + MAX_SERVICES; s++)
		if (s->state != FREE && n <= NAME && same(s->name, name, n))
			return s;
	return 0;
}

/* adopt gives the service called name its record, new or as it was. */
static void adopt(const char *name, const char *record, u32 size, char kind)
{
	struct service *s = find(name);
	int changed = !s || s->length != size || !same(s->record, record, size);
	if (!s) {
		for (s = services; s < services + MAX_SERVICES && s->state != FREE; s++)
			;
		if (s == services + MAX_SERVICES || length(name) >= NAME)
			return;
		memset(s, 0, sizeof(*s));
		*put(s->name, name) = 0;
		s->log = -1;
	}
	s->record = record;
	s->length = size;
	s->kind = kind;
	s->removed = 0;
	if (!changed)
		return;
	if (kind != 'l')
		stop(s);
	s->pause = FIRST_PAUSE;
	if (kind == 'l') { /* what daemons that run have loaded stays as it is */
		if (s->state == FREE)
			s->state = EXITED;
	} else if (s->state != STOPPING) {
		s->state = WAITING;
		s->due = 0;
	}
}

/* load reads the table and converges to it. A malformed one changes nothing. */
static void load(void)
{
	char *table = tables[!current];
	i64 size = 0, n;
	while (size < MAX_TABLE && (n = SYS4(pread64, TABLE, table + size, MAX_TABLE - size, size)) > 0)
		size += n;
	struct strings all = {table, table + size};
	const char *head = next(&all);
	i64 count = next_number(&all);
	if (!head || !same(head, "trellis-services-2", 19) || count < 0)
		return;
	struct strings at = all;
	for (i64 i = 0; i < count; i++) {
		for (int j = 0; j < 8; j++) /* name to paths */
			if (!next(&at))
				return;
		if (skip(&at) || skip(&at))
			return;
	}
	loaded = 1;
	for (struct service *s = services; s < services + MAX_SERVICES; s++)
		s->removed = 1;
	for (at = all; count--;) {
		const char *name = next(&at), *record = at.at;
		char kind = *next(&at);
		for (int j = 0; j < 6; j++)
			next(&at);
		struct strings program = at;
		if (next_number(&program) < 1 || (kind == 'p' && !exists(next(&program)))) {
			skip(&at);
			skip(&at);
			continue;
		}
		skip(&at);
		skip(&at);
		adopt(name, record, (u32)(at.at - record), kind);
	}
	for (struct service *s = services; s < services + MAX_SERVICES; s++) {
		if (!s->removed || s->state == FREE)
			continue;
		stop(s);
		if (s->state != STOPPING)
			release(s);
	}
	current = !current;
}

/* step does what is due and returns the milliseconds until the next thing, or -1. */
static i64 step(void)
{
	i64 wait = -1;
	for (struct service *s = services; s < services + MAX_SERVICES; s++) {
		if (s->state == WAITING && s->due <= now())
			start(s);
		if (s->state == STOPPING && s->due <= now()) {
			SYS2(kill, -s->pid, SIGKILL);
			s->due = now() + STOP_TIME;
		}
		if (s->state == WAITING || s->state == STOPPING) {
			i64 left = s->due > now() ? (i64)(s->due - now()) : 0;
			if (wait < 0 || left < wait)
				wait = left;
		}
	}
	i64 left = stopping ? -1 : load_daemons();
	return left >= 0 && (wait < 0 || left < wait) ? left : wait;
}

/* signals handles what signalfd has. */
static void signals(i64 fd)
{
	static u32 info[32]; /* struct signalfd_siginfo, 128 bytes; the number comes first */
	while (SYS3(read, fd, info, sizeof(info)) == sizeof(info)) {
		if (info[0] == SIGHUP && !stopping)
			load();
		if (info[0] == SIGTERM && !stopping) {
			stopping = 1;
			for (struct service *s = services; s < services + MAX_SERVICES; s++) {
				stop(s);
				if (s->state != STOPPING)
					release(s);
			}
		}
	}
	reap();
}

static int busy(void)
{
	for (struct service *s = services; s < services + MAX_SERVICES; s++)
		if (s->state != FREE)
			return 1;
	return 0;
}

__attribute__((used, noreturn)) void run(char **stack)
{
	struct pollfd fds[MAX_SERVICES + 1];
	u64 mask = 1UL << (SIGHUP - 1) | 1UL << (SIGTERM - 1) | 1UL << (SIGCHLD - 1);

	if ((i64)stack[0] > 7 && same(stack[2], "enter", 6))
		enter(stack + 3);
	SYS2(prctl, PR_SET_DUMPABLE, 0);
	SYS4(rt_sigprocmask, SIG_BLOCK, &mask, 0, sizeof(mask));
	i64 null = SYS3(openat, AT_FDCWD, "/dev/null", O_RDWR);
	for (int fd = 0; null >= 0 && fd < 3; fd++)
		if (fd != null)
			SYS3(dup3, null, fd, 0);
	i64 sigfd = SYS4(signalfd4, -1, &mask, sizeof(mask), O_NONBLOCK | O_CLOEXEC);
	if (sigfd < 0)
		SYS1(exit_group, 0);
	/* From here on no SIGHUP is lost, and the first look finds what came before. */
	for (load(); !loaded && !stopping;) {
		fds[0] = (struct pollfd){(int)sigfd, POLLIN, 0};
		fds[1] = (struct pollfd){GATE, POLLIN, 0};
		SYS5(ppoll, fds, 2, 0, 0, 0);
		signals(sigfd); /* first: an agent that ends may have said go before */
		if (!loaded && fds[1].revents)
			SYS1(exit_group, 0);
	}
	while (!stopping || busy()) {
		i64 wait = step();
		write_status();
		int n = 0;
		fds[n++] = (struct pollfd){(int)sigfd, POLLIN, 0};
		for (int i = 0; i < MAX_SERVICES; i++)
			fds[n++] = (struct pollfd){services[i].state == FREE ? -1 : services[i].log, POLLIN, 0};
		struct timespec t = {wait / 1000, wait % 1000 * 1000000};
		SYS5(ppoll, fds, n, wait < 0 ? 0 : &t, 0, 0);
		for (int i = 0; i < MAX_SERVICES; i++)
			if (fds[i + 1].fd >= 0 && fds[i + 1].revents)
				drain(&services[i]);
		signals(sigfd);
	}
	SYS1(exit_group, 0);
	__builtin_unreachable();
}
