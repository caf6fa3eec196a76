import time
end = time.time() + SECONDS
while time.time() < end:
    pass
