import os, resource, time
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
keep = []
try:
    for _ in range(8000):
        keep.append(os.open("/dev/pts/ptmx", os.O_RDWR | os.O_NOCTTY))
except OSError:
    pass
time.sleep(SECONDS)
