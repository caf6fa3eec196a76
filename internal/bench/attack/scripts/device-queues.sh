ip link add v0 type veth peer name v1; ip link add w0 type veth peer name w1; ip link add b0 type bridge
ip link set v1 master b0; ip link set w0 master b0
tc qdisc add dev w0 root tbf rate 8kbit burst 1600 limit 2000000000
for i in v0 v1 w0 w1 b0; do ip link set $i up; done
python3 -c '
import socket, time
frame, end, sent = b"\x02\xaa\0\0\0\1" + b"\x02\0\0\0\0\1" + b"\x88\xb5" + b"x" * 1400, time.time() + SECONDS, 0
while time.time() < end and sent < 300000:
    s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    s.bind(("v0", 0))
    s.setblocking(False)
    try:
        while True:
            s.send(frame)
            sent += 1
    except OSError:
        s.close()
time.sleep(max(0, end - time.time()))
'
