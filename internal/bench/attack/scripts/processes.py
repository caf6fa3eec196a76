import os, time
end = time.time() + SECONDS
try:
    for _ in range(100000):
        if os.fork() == 0:
            time.sleep(max(0, end - time.time()))
            os._exit(0)
except OSError:
    pass
time.sleep(max(0, end - time.time()))
