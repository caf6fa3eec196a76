ip link add br0 type bridge
for i in eth1 lan0; do ip link set $i master br0; done
end=$(($(date +%s) + SECONDS))
while [ "$(date +%s)" -lt $end ]; do
	ip link set br0 up
	python3 -c '
import socket
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
s.bind(("eth1", 0))
for to in (b"\xff" * 6, b"\x02\xaa\xbb\xcc\xdd\xee"):
    s.send(to + b"\x02\0\0\0\0\1\x88\xb5" + b"x" * 100)
' 2>/dev/null
	sleep 0.2
done
