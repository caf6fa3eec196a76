import socket, sys, time
s = socket.create_connection((sys.argv[1], 5001), timeout=10)
b, sent, start = b"x" * (1 << 18), 0, time.time()
s.settimeout(1)
while time.time() - start < float(sys.argv[2]):
    try:
        sent += s.send(b)
    except TimeoutError:
        pass
print(sent / (time.time() - start))
