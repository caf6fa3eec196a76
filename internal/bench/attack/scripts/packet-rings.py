import mmap, socket, struct, time
keep = []
for version in (0, 2):
    for option in (5, 13):  # PACKET_RX_RING, PACKET_TX_RING
        for _ in range(8):
            try:
                s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
                s.setsockopt(263, 10, struct.pack("i", version))  # SOL_PACKET, PACKET_VERSION
                if version == 2:
                    s.setsockopt(263, option, struct.pack("IIIIIII", 1 << 20, 16, 2048, 8192, 0, 0, 0))
                else:
                    s.setsockopt(263, option, struct.pack("IIII", 1 << 20, 16, 2048, 8192))
                keep.append(s)
            except OSError:
                pass
time.sleep(SECONDS)
