"""Programs that try to hold more memory than they may, each in its own way. Each prints nothing,
and then waits to be ended."""

WAIT = "\nimport time\ntime.sleep(10_000)\n"

MANY = """
import os
for _ in range(14):
    if os.fork() == 0: break
"""
"""The rest of the program runs in fifteen processes."""

TRY = """
def attempt(act):
    try: return act()
    except (OSError, ValueError, MemoryError): return None
"""

LIBC = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
"""

PAIRS = """
import socket
kept = []
for _ in range(25):
    pair = attempt(lambda: socket.socketpair(socket.AF_UNIX, socket.{kind}))
    if pair is None: break
    for end in pair:
        attempt(lambda: end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 20))
        end.setblocking(False)
        for size in (1 << 16, 1 << 10, 1):
            while attempt(lambda: end.send(bytes(size))): pass
    kept.append(pair)
"""

HUGE_PAGES = """
SIZE = 2 << 20
class Part(ctypes.Structure):
    _fields_ = [("start", ctypes.c_void_p), ("size", ctypes.c_size_t)]
kept = []
for _ in range(25):
    ends = attempt(os.pipe)
    if ends is None: break
    kept.append(ends)
    for _ in range(16):
        start = libc.mmap(None, 2 * SIZE, 3, 0x22, -1, 0)
        if start in (None, ctypes.c_void_p(-1).value): break
        place = (start + SIZE - 1) // SIZE * SIZE
        libc.madvise(ctypes.c_void_p(place), SIZE, 14)
        ctypes.memset(place, 1, SIZE)
        libc.vmsplice(ends[1], ctypes.byref(Part(place, 4096)), 1, 0)
        libc.munmap(ctypes.c_void_p(start), 2 * SIZE)
"""

LARGE_PIPES = """
import fcntl, os
kept = []
for _ in range(25):
    ends = attempt(os.pipe)
    if ends is None: break
    kept.append(ends)
    attempt(lambda: fcntl.fcntl(ends[1], fcntl.F_SETPIPE_SZ, 1 << 20))
    os.set_blocking(ends[1], False)
    while attempt(lambda: os.write(ends[1], bytes(1 << 16))): pass
"""

PIPES_IN_FLIGHT = """
import array, fcntl, os, socket
carriers = []
for _ in range(8):
    pair = attempt(socket.socketpair)
    if pair is None: break
    pair[0].setblocking(False)
    carriers.append(pair)
def send():
    for _ in range(4):
        for one, other in carriers:
            batch = []
            for _ in range(4):
                ends = attempt(os.pipe)
                if ends is None: break
                attempt(lambda: fcntl.fcntl(ends[1], fcntl.F_SETPIPE_SZ, 1 << 20))
                os.set_blocking(ends[1], False)
                while attempt(lambda: os.write(ends[1], bytes(1 << 16))): pass
                os.close(ends[1])
                batch.append(ends[0])
            attempt(lambda: one.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS,
                                                  array.array('i', batch))]))
            for each in batch: os.close(each)
send()
"""

CLOSED_SENDERS = """
import socket
kept = []
for _ in range(30):
    pair = attempt(socket.socketpair)
    if pair is None: break
    pair[0].setblocking(False)
    for size in (1 << 16, 1):
        while attempt(lambda: pair[0].send(bytes(size))): pass
    pair[0].close()
    kept.append(pair[1])
"""

BACKLOG = """
import os, socket
listening = socket.socket(socket.AF_UNIX)
attempt(lambda: listening.bind(f'/tmp/{os.getpid()}'))
attempt(lambda: listening.listen(4096))
for _ in range(1000):
    caller = attempt(lambda: socket.socket(socket.AF_UNIX))
    if caller is None: break
    caller.setblocking(False)
    if attempt(lambda: caller.connect(f'/tmp/{os.getpid()}') or True) is None: break
    for size in (1 << 16, 1):
        while attempt(lambda: caller.send(bytes(size))): pass
    caller.close()
"""

SENDERS_TO_ONE = """
import socket, os
name = f'/tmp/{os.getpid()}'
into = attempt(lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
if into is not None:
    into.bind(name)
    for _ in range(1000):
        sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        sender.setblocking(False)
        if attempt(lambda: sender.sendto(bytes(200_000), name)) is None: break
        sender.close()
"""

FILES = """
import os
with open(f'/tmp/{os.getpid()}', 'wb') as file:
    for _ in range(60):
        if attempt(lambda: file.write(bytes(1 << 20))) is None: break
    attempt(file.flush)
kept = bytearray(200 << 20)
"""

DELETED_FILES = """
import os
kept = []
for number in range(20):
    file = attempt(lambda: open(f'/tmp/{number}-{os.getpid()}', 'wb'))
    if file is None: break
    kept.append(file)
    attempt(lambda: file.write(bytes(4 << 20)))
    attempt(file.flush)
    os.unlink(file.name)
more = bytearray(200 << 20)
"""

MAPPINGS = """
start = libc.mmap(None, 200 << 20, 0, 0x22, -1, 0)
if start not in (None, ctypes.c_void_p(-1).value):
    for at in range(0, 200 << 20, 8192):
        if libc.mprotect(ctypes.c_void_p(start + at), 4096, 1): break
"""

LOCKS = """
import fcntl, os, struct
file = open(f'/tmp/{os.getpid()}', 'wb')
for at in range(400_000, 0, -2):
    lock = struct.pack('hhqqi', fcntl.F_WRLCK, 0, at, 1, 0)
    if attempt(lambda: fcntl.fcntl(file, fcntl.F_SETLK, lock)) is None: break
"""

WATCHES = """
import os
folders = [os.path.dirname(os.__file__), '/usr/lib']
for _ in range(20):
    number = libc.inotify_init1(0)
    if number < 0: break
    for top in folders:
        for folder, _, names in os.walk(top):
            for name in names:
                libc.inotify_add_watch(number, os.path.join(folder, name).encode(), 2)
"""

SIGNALS = """
import ctypes, os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, [40])
class Value(ctypes.Union):
    _fields_ = [("number", ctypes.c_int), ("pointer", ctypes.c_void_p)]
libc.sigqueue.argtypes = [ctypes.c_int, ctypes.c_int, Value]
for _ in range(300_000):
    if libc.sigqueue(os.getpid(), 40, Value(1)): break
"""

TIMERS = """
class Event(ctypes.Structure):
    _fields_ = [("value", ctypes.c_void_p), ("signal", ctypes.c_int), ("kind", ctypes.c_int),
                ("rest", ctypes.c_char * 48)]
number = ctypes.c_void_p()
for _ in range(300_000):
    if libc.timer_create(0, ctypes.byref(Event(0, 40, 1)), ctypes.byref(number)): break
"""

FORKS = """
import os
for _ in range(30):
    if attempt(os.fork) == 0: break
kept = bytearray(200 << 20)
for at in range(0, len(kept), 4096): kept[at] = 1
"""

SPLICED = """
import os
with open('/tmp/source', 'wb') as file: file.write(bytes(32 << 20))
kept = []
for _ in range(25):
    ends = attempt(os.pipe)
    if ends is None: break
    kept.append(ends)
    with open('/tmp/source', 'rb') as file:
        attempt(lambda: os.splice(file.fileno(), ends[1], 1 << 16))
        attempt(lambda: os.sendfile(ends[1], file.fileno(), 0, 1 << 16))
"""

HOARDERS = {
    "datagram pairs": TRY + MANY + PAIRS.format(kind="SOCK_DGRAM"),
    "stream pairs": TRY + MANY + PAIRS.format(kind="SOCK_STREAM"),
    "packet pairs": TRY + MANY + PAIRS.format(kind="SOCK_SEQPACKET"),
    "huge pages in pipes": TRY + MANY + LIBC + HUGE_PAGES,
    "large pipes": TRY + MANY + LARGE_PIPES,
    "pipes in flight": TRY + MANY + PIPES_IN_FLIGHT,
    "closed senders": TRY + MANY + CLOSED_SENDERS,
    "connections nobody accepts": TRY + MANY + BACKLOG,
    "many senders to one": TRY + MANY + SENDERS_TO_ONE,
    "files": TRY + FILES,
    "deleted files": TRY + DELETED_FILES,
    "mappings": TRY + MANY + LIBC + MAPPINGS,
    "locks on bytes": TRY + MANY + LOCKS,
    "watches": TRY + MANY + LIBC + WATCHES,
    "waiting signals": TRY + MANY + LIBC + SIGNALS,
    "timers": TRY + MANY + LIBC + TIMERS,
    "processes": TRY + FORKS,
    "spliced files": TRY + MANY + SPLICED,
}
HOARDERS = {name: code + WAIT for name, code in HOARDERS.items()}
