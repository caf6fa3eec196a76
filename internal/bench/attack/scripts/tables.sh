ip link add d0 type bridge; ip link set d0 up; ip link add b0 type bridge; ip link set b0 up
end=$(($(date +%s) + SECONDS))
for i in $(seq 1 4); do ip link add q$i numtxqueues 1024 numrxqueues 1024 type veth peer name r$i numtxqueues 1024 numrxqueues 1024; done 2>/dev/null
python3 -c '
for i in range(200000):
    a = "%x:%x" % (i >> 16, i & 0xffff)
    print("route add 2001:db8:%s::/64 dev d0" % a)
' | timeout SECONDS ip -6 -force -batch - >/dev/null 2>&1 &
python3 -c '
for i in range(200000):
    print("neigh add 10.%d.%d.%d lladdr 02:00:00:00:00:01 dev d0 nud permanent" % (64 + (i >> 16), (i >> 8) & 255, i & 255))
' | timeout SECONDS ip -force -batch - >/dev/null 2>&1 &
python3 -c '
for i in range(200000):
    print("fdb add 02:00:00:%02x:%02x:%02x dev b0" % ((i >> 16) & 255, (i >> 8) & 255, i & 255))
' | timeout SECONDS bridge -force -batch - >/dev/null 2>&1 &
wait
