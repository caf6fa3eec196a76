import resource, socket, struct, time
end = time.time() + SECONDS
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
dump = struct.pack("IHHII", 32, 18, 0x301, 1, 0) + struct.pack("BxHiII", 0, 0, 0, 0, 0)  # RTM_GETLINK
keep = []
while time.time() < end and len(keep) < min(hard - 50, 20000):
    s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    for option in (33, socket.SO_RCVBUF):  # SO_RCVBUFFORCE
        try:
            s.setsockopt(socket.SOL_SOCKET, option, 8 << 20)
            break
        except OSError:
            pass
    s.setblocking(False)
    s.bind((0, 0xffff))
    try:
        s.send(dump)
    except OSError:
        pass
    keep.append(s)
i = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
n = 0
while time.time() < end:  # lo's MTU, told to all of them
    n += 1
    i.send(struct.pack("IHHII", 40, 19, 1, n, 0) + struct.pack("BxHiII", 0, 0, 1, 0, 0) + struct.pack("HHI", 8, 4, 1500 + n % 100))
