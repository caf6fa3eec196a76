import ctypes, time
libc = ctypes.CDLL(None, use_errno=True)
for events in (65536, 32768, 8192, 1024, 128):
    for _ in range(64):
        if libc.syscall(206, events, ctypes.byref(ctypes.c_ulong(0))) < 0:  # io_setup
            break
time.sleep(SECONDS)
