import os, socket, struct, time
end = time.time() + SECONDS
os.system("ip link add d0 type bridge; ip link set d0 up")
index = socket.if_nametoindex("d0")
s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
n = 0
while time.time() < end and n < 600000:
    batch = b""
    for _ in range(200):  # RTM_NEWROUTE, NLM_F_CREATE: each with a metric of its own, so that they share nothing
        n += 1
        batch += struct.pack("IHHII", 52, 24, 0x401, n, 0) + struct.pack("BBBBBBBBI", 2, 32, 0, 0, 254, 4, 253, 1, 0)
        batch += struct.pack("HH", 8, 1) + struct.pack("!I", (10 << 24) + n)
        batch += struct.pack("HHI", 8, 4, index) + struct.pack("HHI", 8, 6, n)
    s.send(batch)
    try:
        s.recv(1 << 16, socket.MSG_DONTWAIT)
    except OSError:
        pass
time.sleep(max(0, end - time.time()))
