import socket, struct, time
end = time.time() + SECONDS
for name in ("ipv4/ipfrag_high_thresh", "ipv6/ip6frag_high_thresh", "ipv4/ipfrag_time", "ipv6/ip6frag_time"):
    try:
        open("/proc/sys/net/" + name, "w").write("2000000000" if "thresh" in name else "3600")
    except OSError:
        pass
s = socket.socket(socket.AF_INET, socket.SOCK_RAW, 255)
s.setsockopt(0, 3, 1)  # IP_HDRINCL
n = 0
while time.time() < end and n < 700000:
    n += 1
    head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 1420, n & 0xffff, 0x2000, 64, 17, 0,
                       socket.inet_aton("127.%d.%d.%d" % (1 + (n >> 16), (n >> 8) & 255, n & 255)), socket.inet_aton("127.0.0.1"))
    try:
        s.sendto(head + b"x" * 1400, ("127.0.0.1", 0))
    except OSError:
        pass
time.sleep(max(0, end - time.time()))
