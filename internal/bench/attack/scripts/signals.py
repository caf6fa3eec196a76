import ctypes, os, signal, time
libc = ctypes.CDLL(None)
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 64))
timer = ctypes.c_void_p()
for _ in range(200000):
    if libc.timer_create(1, None, ctypes.byref(timer)) < 0:
        break
value = (ctypes.c_int * 4)()
for _ in range(200000):
    if libc.sigqueue(os.getpid(), 40, 0) < 0:
        break
time.sleep(SECONDS)
