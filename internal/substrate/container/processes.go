package container

import (
	"log/slog"
	"os"
	"strconv"
	"strings"
)

// pidMax is the kernel's own bound on 64-bit machines (PID_MAX_LIMIT), and what systemd
// sets there. From 32,768, the default, 64 nodes at their limit of 512 would take all.
const pidMax = 4 << 20

const pidMaxFile = "/proc/sys/kernel/pid_max"

// raisePidMax raises kernel.pid_max, and says so. Where it may not, doctor says what
// that costs.
func raisePidMax(log *slog.Logger) {
	b, err := os.ReadFile(pidMaxFile)
	if err != nil {
		return
	}
	have, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || have >= pidMax {
		return
	}
	err = os.WriteFile(pidMaxFile, []byte(strconv.Itoa(pidMax)), 0)
	switch {
	case log == nil:
	case err != nil:
		log.Warn("kernel.pid_max cannot be raised: nodes at their limits may use up the machine's processes", "is", have, "err", err)
	default:
		log.Info("kernel.pid_max is raised, so that nodes at their limits do not use up the machine's processes", "was", have, "is", pidMax)
	}
}
