import os, socket, struct, time
end = time.time() + SECONDS
s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
rate = struct.pack("BBHhHI", 0, 1, 0, 0, 0, 125000)  # struct tc_ratespec
parameters = struct.pack("HH", 48, 1) + rate + rate + struct.pack("IIIII", 1600, 1600, 1600, 0, 0)  # TCA_HTB_PARMS
options = struct.pack("HH4s", 8, 1, b"htb\0") + struct.pack("HH", 4 + len(parameters), 2) + parameters
for device in range(64):
    os.system("ip link add c%d type bridge; tc qdisc add dev c%d root handle 1: htb" % (device, device))
    index = socket.if_nametoindex("c%d" % device)
    for i in range(1, 1000):  # making one takes time in their number
        if time.time() > end:
            raise SystemExit
        s.send(struct.pack("IHHII", 36 + len(options), 40, 0x401, i, 0)  # RTM_NEWTCLASS, NLM_F_CREATE
               + struct.pack("BxxxiIII", 0, index, 0x10000 + i, 0x10000, 0) + options)
        try:
            s.recv(4096, socket.MSG_DONTWAIT)
        except OSError:
            pass
time.sleep(max(0, end - time.time()))
