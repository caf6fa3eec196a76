import ctypes, os, socket, struct
libc = ctypes.CDLL(None, use_errno=True)
rt = ctypes.CDLL("librt.so.1", use_errno=True)

def tried(what, ok):
    if not ok:
        print(what)

tried("inotify", libc.inotify_init1(0) >= 0)
tried("timers", libc.timer_create(1, None, ctypes.byref(ctypes.c_void_p())) >= 0)
pid = os.fork()
if pid == 0:
    import signal
    signal.pthread_sigmask(signal.SIG_BLOCK, [40])
    os._exit(0 if libc.sigqueue(os.getpid(), 40, 0) >= 0 else 1)
tried("signals", os.waitpid(pid, 0)[1] == 0)
class attr(ctypes.Structure):
    _fields_ = [(n, ctypes.c_long) for n in ("flags", "maxmsg", "msgsize", "curmsgs")] + [("pad", ctypes.c_long * 4)]
tried("message queues", rt.mq_open(b"/probe", 0o102, 0o600, ctypes.byref(attr(0, 10, 1024, 0))) >= 0)
rt.mq_unlink(b"/probe")
try:
    os.close(os.open("/dev/pts/ptmx", os.O_RDWR | os.O_NOCTTY))
except FileNotFoundError:
    pass  # it comes with the first terminal
except OSError:
    print("terminals")
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
code = struct.pack("HBBI", 0x28, 0, 0, 12) + struct.pack("HBBI", 6, 0, 0, 0xffff)
text = ctypes.create_string_buffer(code)
try:
    s.setsockopt(socket.SOL_SOCKET, 26, struct.pack("HxxxxxxQ", 2, ctypes.addressof(text)))
except OSError:
    print("socket filters")
s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
head = struct.pack("BxHiHBB", 2, 0, socket.if_nametoindex("eth1"), 4, 0, 0) + struct.pack("HH4s", 8, 1, socket.inet_aton("192.0.2.77"))
def neighbour(kind, flags, more=b""):
    s.send(struct.pack("IHHII", 16 + len(head + more), kind, flags, 0, 0) + head + more)
    return struct.unpack("i", s.recv(4096)[16:20])[0]
tried("neighbours", neighbour(28, 0x405, struct.pack("HH6sxx", 10, 2, b"\x02\0\0\0\0\1")) == 0)  # RTM_NEWNEIGH, NLM_F_ACK | NLM_F_CREATE
neighbour(29, 5)  # RTM_DELNEIGH
