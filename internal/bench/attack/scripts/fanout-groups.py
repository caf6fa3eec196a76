import socket, struct, time
end = time.time() + SECONDS
keep = []
for i in range(900):
    try:
        s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        s.bind(("lo", socket.htons(3)))
        s.setsockopt(263, 18, struct.pack("II", i, 65535))  # SOL_PACKET, PACKET_FANOUT
        keep.append(s)
    except OSError:
        pass
time.sleep(max(0, end - time.time()))
