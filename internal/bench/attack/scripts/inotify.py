import ctypes, time
libc = ctypes.CDLL(None)
for _ in range(100000):
    if libc.inotify_init1(0) < 0:
        break
time.sleep(SECONDS)
