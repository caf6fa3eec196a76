ip link add b0 type bridge; ip link add b1 type bridge
ip link add v0 type veth peer name v1; ip link add w0 type veth peer name w1
for i in v0 w0; do ip link set $i master b0 up; done
for i in v1 w1; do ip link set $i master b1 up; done
end=$(($(date +%s) + SECONDS))
while [ "$(date +%s)" -lt $end ]; do
	ip link set b0 up; ip link set b1 up
	sleep 0.2
done
