"""What a run holds is bounded, whoever keeps it: its processes, its files or the kernel."""

import asyncio
from collections.abc import Iterator

import pytest
from hoarders import HOARDERS
from support import HANG_S, NO_NAMESPACES, may_isolate

from rollout_kit.serving.sandbox.limits import SandboxLimits, SandboxRun
from rollout_kit.serving.sandbox.sandbox import Sandbox

LIMITS = SandboxLimits(time_s=HANG_S, memory_mb=256)

pytestmark = pytest.mark.skipif(not may_isolate(), reason=NO_NAMESPACES)


class Opened:
    def __init__(self, runner: asyncio.Runner, sandbox: Sandbox) -> None:
        self.runner, self.sandbox = runner, sandbox

    def run(self, code: str, limits: SandboxLimits = LIMITS) -> SandboxRun:
        return self.runner.run(self.sandbox.run(code, limits=limits))


@pytest.fixture(scope="module")
def opened() -> Iterator[Opened]:
    with asyncio.Runner() as runner:
        sandbox = Sandbox(1)
        runner.run(sandbox.start())
        yield Opened(runner, sandbox)
        runner.run(sandbox.close())


REFUSED = {
    "datagram pairs": "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)",
    "a datagram socket": "socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)",
    "packet pairs": "socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)",
    "a larger buffer": "pair[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)",
    "a larger inbox": "pair[0].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)",
    "a filter": "pair[0].setsockopt(socket.SOL_SOCKET, 26, bytes(16))",
    "an option of IP": "socket.socket().setsockopt(socket.IPPROTO_IP, 4, bytes(40))",
    "pages in a pipe": "call('vmsplice', ends[1], 0, 0, 0)",
    "tee": "call('tee', ends[0], other[1], 1, 0)",
    "splice": "call('splice', ends[0], None, other[1], None, 1, 0)",
    "sendfile": "os.sendfile(ends[1], file.fileno(), 0, 1)",
    "a lock on bytes": "fcntl.lockf(file, fcntl.LOCK_EX, 1)",
    "a lock of a file": "fcntl.fcntl(file, 37, bytes(32))",
    "a lease": "fcntl.fcntl(file, 1024, fcntl.F_WRLCK)",
    "a note about a folder": "fcntl.fcntl(os.open('/tmp', 0), 1026, 1)",
    "watches of files": "call('inotify_init1', 0)",
    "watches of all files": "call('fanotify_init', 0, 0)",
    "old asynchronous calls": "call('syscall', 206 if is_x86 else 0, 1, bytes(8))",
    "new asynchronous calls": "call('syscall', 425, 1, bytes(120))",
    "rules of its own": "call('syscall', 444, 0, 0, 1)",
    "a filter of its own": "call('prctl', 22, 2, 0)",
    "a descriptor of another": "call('syscall', 438, os.pidfd_open(os.getpid()), 0, 0)",
    "a call that is not known yet": "call('syscall', 480)",
}

REFUSAL = """
import ctypes, errno, fcntl, os, platform, socket
libc = ctypes.CDLL(None, use_errno=True)
is_x86 = platform.machine() == 'x86_64'
def call(name, *arguments):
    if getattr(libc, name)(*arguments) == -1:
        raise OSError(ctypes.get_errno(), name)
pair, ends, other, file = socket.socketpair(), os.pipe(), os.pipe(), open('/tmp/x', 'w+b')
file.write(b'x'); file.flush()
os.write(ends[1], b'x')
try: {code}
except OSError as error:
    print(error.errno in (errno.EPERM, errno.ENOSYS, errno.EAFNOSUPPORT), error)
else: print('permitted')
"""


@pytest.mark.parametrize("code", REFUSED.values(), ids=REFUSED)
def test_calls_that_hold_memory_uncounted_are_refused(opened: Opened, code: str) -> None:
    run = opened.run(REFUSAL.format(code=code))
    assert run.stdout.startswith(b"True "), run


COUNTED = ("connections nobody accepts", "files", "deleted files", "processes")
"""Of those that wait, the ways that pass the limit by what is counted."""


@pytest.mark.parametrize("name", COUNTED)
def test_what_is_held_counts(opened: Opened, name: str) -> None:
    assert opened.run(HOARDERS[name]).end == "memory"


def test_sockets_count(opened: Opened) -> None:
    """A program within its limit passes it by the sockets that it opens besides."""
    code = """
import os, socket, time
kept = bytearray(150 << 20)
for _ in range(14):
    if os.fork() == 0: break
pairs = [socket.socketpair() for _ in range(int({number}))]
time.sleep({pause})
"""
    assert opened.run(code.format(number=0, pause=0.3)).end == "finished"
    assert opened.run(code.format(number=14, pause=10_000)).end == "memory"


def test_mappings_count(opened: Opened) -> None:
    """Fifteen processes hold little but their many mappings, and one of them 100 MB besides."""
    start = "if not os.getppid(): kept = bytearray(100 << 20)\n"
    code = HOARDERS["mappings"].replace("start = ", start + "start = ", 1)
    assert opened.run(code).end == "memory"


def test_pipes_have_few_pages_together(opened: Opened) -> None:
    """As far as the machine bounds the pipes of a user at all."""
    code = """
import fcntl, os
total = 0
for _ in range(12):
    if os.fork(): os.wait(); continue
    kept = []
    while True:
        try: kept.append(os.pipe())
        except OSError: break
        try: fcntl.fcntl(kept[-1][0], fcntl.F_SETPIPE_SZ, 1 << 20)
        except OSError: pass
    print(sum(fcntl.fcntl(ends[0], fcntl.F_GETPIPE_SZ) for ends in kept), flush=True)
    os._exit(0)
"""
    sizes = [int(line) for line in opened.run(code).stdout.split()]
    assert len(sizes) == 12 and max(sizes) <= 9 << 20
    assert 1 << 20 in (
        int(each)
        for each in opened.run(
            "import fcntl, os\nends = os.pipe()\n"
            "print(fcntl.fcntl(ends[0], fcntl.F_SETPIPE_SZ, 1 << 20))"
        ).stdout.split()
    )


def test_waiting_signals_and_timers_are_few(opened: Opened) -> None:
    code = """
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
signal.pthread_sigmask(signal.SIG_BLOCK, [40])
sent = 0
while libc.sigqueue(os.getpid(), 40, ctypes.c_void_p(1)) == 0: sent += 1
print(sent)
"""
    assert int(opened.run(code).stdout) <= 256


WORKING = {
    "asyncio": """
import asyncio
async def main():
    queue = asyncio.Queue()
    async def put():
        for n in range(100): await queue.put(n)
    task = asyncio.create_task(put())
    total = sum([await queue.get() for _ in range(100)])
    one, other = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=one)
    reader2, writer2 = await asyncio.open_connection(sock=other)
    writer.write(bytes(1 << 20)); writer.write_eof()
    assert len(await reader2.read()) == 1 << 20
    total += await asyncio.to_thread(lambda: 50)
    await task
    print(total)
import socket
asyncio.run(main())
""",
    "subprocess of asyncio": """
import asyncio, sys
async def main():
    pipe = asyncio.subprocess.PIPE
    command = [sys.executable, '-SsEc', 'print(input()[::-1])']
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    print((await process.communicate(b'0005'))[0].decode())
asyncio.run(main())
""",
    "subprocess": """
import subprocess, sys
code = "import sys; sys.stdout.write(sys.stdin.read()[::-1])"
command = [sys.executable, '-SsEc', code]
made = subprocess.run(command, input='0005', capture_output=True, text=True)
print(made.stdout or made.stderr)
""",
    "threading": """
import threading
found, lock = [], threading.Lock()
def work(n):
    with lock: found.append(n)
threads = [threading.Thread(target=work, args=[n]) for n in range(10)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(5000 + sum(found) - 45)
""",
    "multiprocessing": """
import multiprocessing
def square(n): return n * n
context = multiprocessing.get_context('fork')
with context.Pool(4) as pool: total = sum(pool.map(square, range(20)))
one, other = context.Pipe()
process = context.Process(target=other.send, args=[2530])
process.start(); total += one.recv(); process.join()
queue = context.Queue()
queue.put(0); total += queue.get()
print(total)
""",
    "a process of a manager": """
import multiprocessing
with multiprocessing.get_context('fork').Manager() as manager:
    numbers = manager.list([1, 2])
    numbers.append(4997)
    print(sum(numbers))
""",
    "concurrent.futures": """
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
import multiprocessing
with ProcessPoolExecutor(3, mp_context=multiprocessing.get_context('fork')) as pool:
    total = sum(pool.map(abs, range(-99, 1)))
with ThreadPoolExecutor(4) as pool: total += sum(pool.map(abs, range(11)))
print(total - 5)
""",
    "a pipe of 1 MB": """
import fcntl, os
ends = os.pipe()
assert fcntl.fcntl(ends[1], fcntl.F_SETPIPE_SZ, 1 << 20) == 1 << 20
assert os.write(ends[1], bytes(1 << 20)) == 1 << 20
size = 0
while size < 1 << 20: size += len(os.read(ends[0], 1 << 16))
print(5000)
""",
    "1 MB through a pipe": """
import os
ends = os.pipe()
if os.fork() == 0:
    os.close(ends[0])
    with os.fdopen(ends[1], 'wb') as file: file.write(bytes(1 << 20))
    os._exit(0)
os.close(ends[1])
with os.fdopen(ends[0], 'rb') as file: assert len(file.read()) == 1 << 20
os.wait()
print(5000)
""",
    "files": """
import fcntl, os, shutil, tempfile
with tempfile.NamedTemporaryFile() as file:
    file.write(bytes(1 << 20)); file.flush()
    fcntl.flock(file, fcntl.LOCK_EX)
    shutil.copy(file.name, '/tmp/copy')
print(os.path.getsize('/tmp/copy') - (1 << 20) + 5000)
""",
    "selectors": """
import selectors, socket
one, other = socket.socketpair()
one.settimeout(5); one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
with selectors.DefaultSelector() as selector:
    selector.register(other, selectors.EVENT_READ)
    one.send(b'5000')
    assert selector.select()
print(other.recv(4).decode())
""",
    "timers and signals": """
import signal, threading
got = threading.Event()
signal.signal(signal.SIGALRM, lambda *_: got.set())
signal.setitimer(signal.ITIMER_REAL, 0.01)
got.wait()
print(5000)
""",
}


@pytest.mark.parametrize("code", WORKING.values(), ids=WORKING)
def test_what_programs_use_keeps_working(opened: Opened, code: str) -> None:
    run = opened.run(code)
    assert (run.end, run.stdout.strip()) == ("finished", b"5000"), run


SEND = """
import array, socket
def send(over, numbers):
    over.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', numbers))])
"""

CYCLES = {
    "sockets in each other": """
for _ in range(5):
    one, other = socket.socketpair()
    send(one, [other.fileno(), 1, 3]); send(other, [one.fileno(), 1, 3])
    one.close(); other.close()
""",
    "a socket in itself": """
one, other = socket.socketpair()
send(one, [other.fileno(), 1, 3])
one.close(); other.close()
""",
    "listening sockets": """
for number in range(5):
    listening, caller = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    listening.bind(f'/tmp/{number}'); listening.listen(8); caller.connect(f'/tmp/{number}')
    send(caller, [listening.fileno(), caller.fileno(), 1, 3])
    caller.close(); listening.close()
""",
    "a ring": """
ring = [socket.socketpair() for _ in range(5)]
for (one, _), (_, other) in zip(ring, ring[1:] + ring[:1]): send(one, [other.fileno(), 1, 3])
for pair in ring:
    for each in pair: each.close()
""",
    "of many processes": """
import os
for _ in range(2): os.fork()  # all together send fewer descriptors than Linux lets be under way
one, other = socket.socketpair()
send(one, [other.fileno(), 1, 3]); send(other, [one.fileno(), 1, 3])
""",
}


@pytest.mark.parametrize("code", CYCLES.values(), ids=CYCLES)
def test_sockets_that_outlive_a_run_are_its_own_fault(opened: Opened, code: str) -> None:
    """The run is not waited for, and the next one finds a sound sandbox."""
    for _ in range(3):
        run = opened.run(SEND + code + "print('passed')")
        # the kernel may have found them already
        assert run.end in ("left", "finished") and run.duration_s < HANG_S, run
        assert opened.run("print(42)").stdout == b"42\n"


def test_descriptors_may_be_passed_between_processes(opened: Opened) -> None:
    code = """
import os, socket
one, other = socket.socketpair()
if os.fork() == 0:
    ends = os.pipe()
    os.write(ends[1], b'5000')
    socket.send_fds(one, [b'x'], [ends[0]])
    os._exit(0)
_, (got,), _, _ = socket.recv_fds(other, 1, 1)
os.wait()
print(os.read(got, 4).decode())
"""
    run = opened.run(code)
    assert (run.end, run.stdout) == ("finished", b"5000\n")
