import os, socket, struct, time
end = time.time() + SECONDS
os.system("ip link add d0 type bridge; ip link set d0 up")
index = struct.pack("i", socket.if_nametoindex("d0"))
s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
n = 0
while time.time() < end:
    batch = b""
    for _ in range(200):  # RTM_NEWNEIGH, NLM_F_CREATE: stale ones, which count against the limit of all
        address = struct.pack("!I", (10 << 24) + n % 200000)
        n += 1
        batch += struct.pack("IHHII", 48, 28, 0x401, n, 0) + struct.pack("BxH4sHBB", 2, 0, index, 4, 0, 0)
        batch += struct.pack("HH4s", 8, 1, address) + struct.pack("HH6sxx", 10, 2, b"\x02\0\0\0\0\1")
    s.send(batch)
    try:
        s.recv(1 << 16, socket.MSG_DONTWAIT)
    except OSError:
        pass
