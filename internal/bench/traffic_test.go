package bench

import (
	"strings"
	"testing"
	"time"
)

func TestBusyInterface(t *testing.T) {
	got, err := parseDev(`Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:  100       7    0    0    0     0          0         0      100       7    0    0    0     0       0          0
  eth0: 4242      40    0    0    0     0          0         0      999       2    0    0    0     0       0          0
`)
	if err != nil || len(got) != 1 || got["eth0"] != 42 {
		t.Errorf("packets are %v, with the error %v", got, err)
	}
	for _, text := range []string{"eth0: 1 2 3\n", "eth0: 1 x 3 4 5 6 7 8 9 10 11\n"} {
		if got, err := parseDev(text); err == nil {
			t.Errorf("%q is read as %v", text, got)
		}
	}
	err = judgeTraffic("eth0", 2*BusyPackets)
	for _, want := range []string{"eth0", "10000 packets", "--force"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("real traffic: %v does not say %q", err, want)
		}
	}
	if err := judgeTraffic("eth0", BusyPackets); err != nil {
		t.Error(err)
	}
	if _, packets, err := BusyInterface(time.Millisecond); err != nil || packets < 0 {
		t.Errorf("%v packets a second, with the error %v", packets, err)
	}
}
