import socket, time
l = socket.create_server(("0.0.0.0", 5001), backlog=4)
print("ready", flush=True)
buf = bytearray(1 << 18)
while True:
    c, _ = l.accept()
    while c.recv_into(buf):
        pass
