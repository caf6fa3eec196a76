import ctypes, resource, socket, struct, time
end = time.time() + SECONDS
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
code = b"".join([struct.pack("HBBI", 0x28, 0, 0, 12), struct.pack("HBBI", 0x15, 0, 0, 0x800)] * 2047) + struct.pack("HBBI", 6, 0, 0, 0xffff) * 2
text = ctypes.create_string_buffer(code)
keep = []
try:
    while time.time() < end and len(keep) < hard - 50:
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        s.setsockopt(socket.SOL_SOCKET, 26, struct.pack("HxxxxxxQ", len(code) // 8, ctypes.addressof(text)))  # SO_ATTACH_FILTER
        keep.append(s)
except OSError:
    pass
time.sleep(max(0, end - time.time()))
