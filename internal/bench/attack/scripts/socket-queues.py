import resource, socket, time
end = time.time() + SECONDS
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
keep = []
out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
l = socket.create_server(("127.0.0.1", 0), backlog=1000)
while time.time() < end and len(keep) < 9000:
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
    s.bind(("127.0.0.1", 0))
    keep.append(s)
    try:
        for _ in range(8):
            out.sendto(b"x" * 60000, s.getsockname())
    except OSError:
        pass
    if len(keep) % 8:
        continue
    try:
        s = socket.create_connection(l.getsockname(), timeout=0.05)
        keep += [s, l.accept()[0]]
        while True:
            s.send(b"x" * 1000000)
    except OSError:
        pass
time.sleep(max(0, end - time.time()))
