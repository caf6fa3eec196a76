import os, socket, struct, time
end = time.time() + SECONDS
os.system("ip link add f0 type bridge; tc qdisc add dev f0 clsact")
index = socket.if_nametoindex("f0")
s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
code = (struct.pack("HBBI", 0x28, 0, 0, 12) + struct.pack("HBBI", 0x15, 0, 0, 0x800)) * 2047 + struct.pack("HBBI", 6, 0, 0, 0xffff) * 2
options = struct.pack("HHHxx", 6, 4, len(code) // 8) + struct.pack("HH", 4 + len(code), 5) + code  # TCA_BPF_OPS_LEN, TCA_BPF_OPS
attributes = struct.pack("HH4s", 8, 1, b"bpf\0") + struct.pack("HH", 4 + len(options), 2) + options
for i in range(1, 4000):
    if time.time() > end:
        break
    s.send(struct.pack("IHHII", 36 + len(attributes), 44, 0x405, i, 0)  # RTM_NEWTFILTER, NLM_F_ACK | NLM_F_CREATE
           + struct.pack("BxxxiIII", 0, index, i, 0xfffffff2, (1 << 16) + socket.htons(3)) + attributes)
    if struct.unpack("i", s.recv(65536)[16:20])[0]:
        break
time.sleep(max(0, end - time.time()))
