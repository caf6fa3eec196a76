import ctypes, time
libc = ctypes.CDLL(None, use_errno=True)
class attr(ctypes.Structure):
    _fields_ = [(n, ctypes.c_long) for n in ("flags", "maxmsg", "msgsize", "curmsgs")] + [("pad", ctypes.c_long * 4)]
rt = ctypes.CDLL("librt.so.1")
for i in range(2000):
    a = attr(0, 10, 8192, 0)
    if rt.mq_open(b"/q%d" % i, 0o102, 0o600, ctypes.byref(a)) < 0:
        break
time.sleep(SECONDS)
