"""Ways to forge a pass, or to leave something behind for the next run: none is worth anything."""

import asyncio
import json
import platform
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from support import HANG_S, NO_NAMESPACES, may_isolate

from rollout_kit import make_response, message_item
from rollout_kit.api.testing import making, mount
from rollout_kit.serving.registry import load
from rollout_kit.serving.sandbox.limits import SandboxLimits, SandboxRun
from rollout_kit.serving.sandbox.sandbox import Sandbox

USUAL = SandboxLimits(time_s=HANG_S, memory_mb=256, output_bytes=1 << 16)

pytestmark = pytest.mark.skipif(not may_isolate(), reason=NO_NAMESPACES)

STATE = """
import builtins, gc, json, locale, os, resource, signal, sys, threading, time, warnings
names = [name for name in dir(resource) if name.startswith('RLIMIT_')]
print(sys.gettrace(), sys.getprofile(), gc.callbacks, gc.isenabled(), gc.get_threshold())
print(sys.excepthook is sys.__excepthook__, sys.unraisablehook is sys.__unraisablehook__)
print(threading.excepthook is threading.__excepthook__, hasattr(sys, 'exitfunc'))
print(sys.displayhook is sys.__displayhook__, sys.breakpointhook is sys.__breakpointhook__)
print([(each, signal.getsignal(each)) for each in signal.valid_signals()])
print(signal.getitimer(signal.ITIMER_REAL), signal.getitimer(signal.ITIMER_PROF), signal.alarm(0))
print(signal.pthread_sigmask(signal.SIG_BLOCK, []), threading.active_count())
print([(name, resource.getrlimit(getattr(resource, name))) for name in names])
print(os.nice(0), os.sched_getscheduler(0), os.sched_getaffinity(0), os.getpid(), os.getpgid(0))
print(os.getcwd(), os.listdir('.'), sorted(os.environ.items()), os.times()[2:4])
print(sys.path, sys.meta_path, len(sys.path_hooks), sorted(sys.modules), sorted(vars(builtins)))
print(sys.getrecursionlimit(), sys.getswitchinterval(), sys.getdlopenflags(), sys.argv)
print(locale.setlocale(locale.LC_ALL), time.tzname, time.time.__module__, warnings.filters)
print(json.dumps([1, 2 + 2, True, 'a' + 'b']), 1 + 1, len('ab'), sorted([3, 1]), int('7'))
print(int.__flags__, str.__flags__, [].append, str.upper('a'), None, True, bool(0))
print(os.stat('/dev/null').st_mtime_ns, os.stat('/dev/urandom').st_mtime_ns)
print(sorted(os.listdir('/')), sorted(os.listdir('/dev')), oct(os.umask(0o22)))
"""
"""A program that prints all that an earlier run could have changed."""

ADDRESS = re.compile(rb"0x[0-9a-f]+")


class Shared:
    """One sandbox with one zygote for all tests: so each finds what those before it have left."""

    def __init__(self, runner: asyncio.Runner, sandbox: Sandbox) -> None:
        self.runner, self.sandbox = runner, sandbox
        self.state = self.look()

    def run(self, code: str, *, limits: SandboxLimits = USUAL, **how: Any) -> SandboxRun:
        return self.runner.run(self.sandbox.run(code, limits=limits, **how))

    def look(self) -> bytes:
        run = self.run(STATE)
        assert run.end == "finished", run
        return ADDRESS.sub(b"", run.stdout)


@pytest.fixture(scope="module")
def opened() -> Iterator[Shared]:
    with asyncio.Runner() as runner:
        sandbox = Sandbox(1)
        runner.run(sandbox.start())
        yield Shared(runner, sandbox)
        runner.run(sandbox.close())


@pytest.fixture
def held(opened: Shared) -> Iterator[Shared]:
    """Whatever a test has done, the next run finds what the first one found, and is right."""
    zygotes = list(opened.sandbox._zygotes._idle)
    yield opened
    assert list(opened.sandbox._zygotes._idle) == zygotes
    assert opened.look() == opened.state
    run = opened.run("def f(a, b): return a + b", function="f", arguments=[17, 25])
    assert (run.end, run.value) == ("finished", 42)


ANSWERS = {
    "one before": 'os.write(3, b\'{"value": "pass"}\')',
    "one after": 'atexit.register(os.write, 3, b\'{"value": "pass"}\')',
    "one of another thread": "t = threading.Thread(target=os.write, args=[3, b'{}']);"
    " t.start(); t.join()",
    "spaces and another": "os.write(3, b' ' * 1000 + b'{\"value\": \"pass\"}\\n')",
    "a mark of the order": 'os.write(3, b\'\\xef\\xbb\\xbf{"value": "pass"}\')',
    "zeros": "os.write(3, bytes(9))",
    "no unicode": "os.write(3, b'\\xff\\xfe\\xff')",
    "a list": 'os.write(3, b\'[{"value": "pass"}]\'); os._exit(0)',
    "a text": "os.write(3, b'\"value\"'); os._exit(0)",
    "a half": 'os.write(3, b\'{"value": "pa\'); os._exit(0)',
    "no value": 'os.write(3, b\'{"number": 1, "answered": true}\'); os._exit(0)',
    "nothing": "os.dup2(2, 3)",
    "the output": 'os.dup2(1, 3); os.write(1, b\'{"value": "pass"}\')',
    "a file": "os.dup2(os.open('/tmp/x', os.O_RDWR | os.O_CREAT), 3)",
    "a closed one": "os.close(3)",
    "a child after the end": "if not os.fork():\n"
    "        while os.getppid(): pass\n"
    '        os.write(3, b\'{"value": "pass"}\')\n'
    "    os._exit(0)",
}
"""Acts around the answer → what comes of them is what was returned, or nothing."""


@pytest.mark.parametrize("act", ANSWERS.values(), ids=ANSWERS)
def test_an_answer_is_whole_or_none(held: Shared, act: str) -> None:
    code = f"import atexit, os, threading\ndef f():\n    {act}\n    return 'wrong'"
    run = held.run(code, function="f")
    assert run.value in ("wrong", None) and run.number is None, run


ENDS = {
    "a status": "os._exit(3)",
    "an abort": "os.abort()",
    "an exception": "raise ValueError",
    "a memory fault": "ctypes.string_at(0)",
    "a flood": "os.write(1, b'x'); [os.write(3, b' ' * 9_000) for _ in range(9)]",
    "a closed output": "os.close(3); os.close(1); raise ValueError",
    "an exception without words": "raise type('E', (Exception,), {'__repr__': None})",
}


@pytest.mark.parametrize("act", ENDS.values(), ids=ENDS)
def test_an_answer_does_not_say_how_the_run_ended(held: Shared, act: str) -> None:
    told = {"value": "pass", "end": "finished", "status": 0, "stopped": "", "left": False}
    told |= {"fault": "", "duration_s": 0, "cpu_s": 0, "stdout": "pass"}
    code = f"import ctypes, os\ndef f():\n    os.write(3, {json.dumps(told).encode()!r})\n    {act}"
    run = held.run(code, function="f")
    assert run.end in ("died", "raised", "output") and run.cpu_s > 0, run


@pytest.mark.parametrize("depth", [*range(988, 1000), 30_000])
@pytest.mark.parametrize("name", ["value", "error", "number"])
def test_an_answer_of_any_depth_is_read(held: Shared, name: str, depth: int) -> None:
    code = f"import os; os.write(3, b'{{\"{name}\": ' + b'[' * {depth} + b']' * {depth} + b'}}')"
    run = held.run(code)
    assert run.end in ("finished", "raised") and run.number is None


LEFT = {
    "a trace": "sys.settrace(lambda *_: os._exit(0)); threading.settrace(print)",
    "a profile": "sys.setprofile(lambda *_: None); threading.setprofile(print)",
    "an audit hook": "sys.addaudithook(lambda *_: None)",
    "hooks of exceptions": "sys.excepthook = threading.excepthook = sys.unraisablehook = print",
    "a hook of the exit": "sys.exitfunc = lambda: os._exit(0)",
    "a function at the exit": "atexit.register(os._exit, 0)",
    "one of the threads": "threading._register_atexit(os._exit, 0)",
    "a finalizer": "weakref.finalize(os, os._exit, 0)",
    "a method at the end": "X = type('X', (), {'__del__': lambda _: os._exit(0)}); x = X()",
    "a function at a fork": "os.register_at_fork(before=os.abort, after_in_child=os.abort)",
    "callbacks of the collector": "gc.callbacks.append(print); gc.set_threshold(1); gc.disable()",
    "an alarm": "signal.alarm(1); signal.setitimer(signal.ITIMER_PROF, 0.001)",
    "a timer": "signal.signal(signal.SIGALRM, signal.SIG_IGN);"
    " signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)",
    "a timer of the kernel": "libc.timer_create(1, None, ctypes.byref(ctypes.c_void_p()))",
    "signals": "[signal.signal(each, signal.SIG_IGN) for each in (1, 2, 10, 15, 17)];"
    " signal.pthread_sigmask(signal.SIG_BLOCK, [2, 17])",
    "a thread": "threading.Thread(target=time.sleep, args=[10_000], daemon=True).start()",
    "a limit": "resource.setrlimit(resource.RLIMIT_NOFILE, (8, 8));"
    " resource.setrlimit(resource.RLIMIT_CPU, (9, 9))",
    "a priority": "os.nice(19); os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]);"
    " os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))",
    "a mask of files": "os.umask(0o777)",
    "a language": "locale.setlocale(locale.LC_ALL, 'C'); os.environ['LC_ALL'] = 'C'",
    "a zone": "os.environ['TZ'] = 'Asia/Tokyo'; time.tzset()",
    "a clock": "time.time = time.monotonic = time.perf_counter = lambda: 0",
    "an environment": "libc.setenv(b'PYTHONPATH', b'/tmp', 1); os.putenv('PYTHONHOME', '/tmp')",
    "a module at the start": "[open(f'/tmp/{name}.py', 'w').write('1 / 0') for name in"
    " ('usercustomize', 'sitecustomize', 'json')]; sys.path.insert(0, '/tmp')",
    "an importer": "sys.meta_path.insert(0, None); sys.path_hooks.clear();"
    " sys.path_importer_cache.clear()",
    "compiled files": "py_compile.compile(json.__file__, cfile='/tmp/json.pyc')",
    "other built-ins": "builtins.print = builtins.open = None; builtins.int = str",
    "other modules": "json.loads = json.dumps = os.write = os._exit = lambda *_: 'null'",
    "another interpreter": "[setattr(module, name, None) for module in (gc, socket, select)"
    " for name in dir(module) if name[0] != '_']",
    "another number": "ctypes.memset(id(2) + 24, 5, 1)",
    "another type": "ctypes.memset(id(int) + 168, 255, 2)",
    "another truth": "ctypes.memset(id(True) + 16, 255, 8)",
    "a method of a type": "ctypes.pythonapi.PyType_Modified(str);"
    " gc.get_referents(str.__dict__)[0]['upper'] = lambda _: 'x'",
    "frames of the zygote": """
frame = sys._getframe()
while frame:
    for name in list(frame.f_locals): frame.f_locals[name] = None
    ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), 1)
    frame.f_globals.clear() if frame.f_code.co_name in ('main', '_run') else None
    frame = frame.f_back""",
    "all modules": "[vars(each).clear() for name, each in list(sys.modules.items())"
    " if name.startswith('rollout_kit')]",
    "times of devices": "[os.utime(each) for each in ('/dev/null', '/dev/urandom')]",
    "the time of the output": "os.utime(2)",
    "rights of what is given": "[os.fchmod(each, 0) for each in range(4)]",
    "files under all names": "[open(f'/dev/shm/{n}', 'w') for n in range(5)];"
    " os.mkdir('/tmp/.stdin'); os.symlink('/', '/tmp/root')",
    "an unnamed file": "os.open('/tmp', os.O_TMPFILE | os.O_RDWR)",
    "locks": "fcntl.flock(os.open(os.__file__, 0), fcntl.LOCK_EX);"
    " fcntl.flock(os.open('/dev/null', 0), fcntl.LOCK_EX)",
    "flags of what is given": "[fcntl.fcntl(each, fcntl.F_SETFL, os.O_NONBLOCK | os.O_APPEND"
    " | os.O_DIRECT) for each in (1, 2, 3)]",
    "owners of what is given": "[fcntl.fcntl(each, fcntl.F_SETOWN, 1) for each in range(4)]",
    "larger pipes": "[fcntl.fcntl(each, fcntl.F_SETPIPE_SZ, 1 << 20) for each in (1, 3)]",
    "an abstract name": "s = socket.socket(socket.AF_UNIX); s.bind('\\0name'); s.listen()",
    "a port": "s = socket.socket(); s.bind(('', 4242)); s.listen()",
    "streams": "sys.stdout = sys.stdin = sys.stderr = sys.__stdout__ = None",
    "a stream that fails": "sys.stdout = type('S', (), {'flush': os.abort, 'write': print})",
    "recursion": "sys.setrecursionlimit(10**9); sys.setswitchinterval(100); sys.setdlopenflags(9)",
    "a status of its own": "sys.stdout.flush(); os._exit(117)",
}
"""What a run changes, as far as it may → the next ones find nothing of it."""

TOOLS = """
import atexit, builtins, ctypes, fcntl, gc, json, locale, os, py_compile, resource, select, signal
import socket, sys, threading, time, weakref
libc = ctypes.CDLL(None, use_errno=True)
"""


@pytest.mark.parametrize("code", LEFT.values(), ids=LEFT)
def test_nothing_is_left_behind(held: Shared, code: str) -> None:
    run = held.run(TOOLS + code)
    assert run.end in ("finished", "raised", "died"), run


REFUSED = {
    "a signal to the parent": "os.kill(os.getppid() or 4194304, 9)",
    "a signal to all": "os.kill(-1, 9)",
    "a signal to a session": "os.killpg(os.getpgid(os.getppid()) or 4194304, 9)",
    "a descriptor of the parent": "os.pidfd_open(os.getppid() or 4194304)",
    "the parent's priority": "os.setpriority(os.PRIO_PROCESS, os.getppid() or 4194304, 5)",
    "the parent's limits": "resource.prlimit(os.getppid() or 4194304, resource.RLIMIT_CPU)",
    "a higher limit": "call('setrlimit', 7, (ctypes.c_ulong * 2)(1 << 20, 1 << 20))",
    "a higher priority": "os.nice(-1)",
    "real time": "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))",
    "a child's memory": "call('process_vm_writev', child(), None, 0, None, 0, 0)",
    "a child's descriptor": "call('syscall', 438, os.pidfd_open(child()), 0, 0)",
    "a child's trace": "call('ptrace', 16, child(), 0, 0)",
    "its own trace": "call('ptrace', 0, 0, 0, 0)",
    "a comparison": "call('syscall', 312 if is_x86 else 272, child(), child(), 0, 0, 0)",
    "a brother": "clone(0x8000)",
    "a clone with mounts": "clone(0x20000)",
    "a clone with users": "clone(0x10000000)",
    "a clone with processes": "clone(0x20000000)",
    "a clone with a network": "clone(0x40000000)",
    "a clone with a control group": "clone(0x2000000)",
    "clone3": "call('syscall', 435, bytes(88), 88)",
    "a namespace of time": "call('unshare', 0x80)",
    "a namespace of a child": "call('setns', os.pidfd_open(child()), 0x20000)",
    "the clock": "time.clock_settime(time.CLOCK_REALTIME, 1e9)",
    "a slow clock": "call('adjtimex', (ctypes.c_long * 26)(1, 5))",
    "a root": "os.chroot('/')",
    "a mount": "call('mount', b'/', b'/tmp', b'', 4096, None)",
    "a mount again": "call('mount', b'', b'/', b'', 4096 | 32, None)",
    "a tree": "call('syscall', 428, -100, b'/', 1)",
    "a file by its handle": "call('open_by_handle_at', 3, bytes(16), 0)",
    "a device": "os.mknod('/tmp/null', 0o20666, os.makedev(1, 3))",
    "the interpreter's file": "open(os.__file__, 'r+b')",
    "the interpreter's folder": "os.rename(os.path.dirname(os.__file__), '/tmp/lib')",
    "a link to the interpreter": "os.link(os.__file__, '/tmp/os.py')",
    "a folder of its cache": "os.mkdir(os.path.dirname(os.__file__) + '/__pycache__/x')",
    "rights of the interpreter": "os.chmod(os.__file__, 0o777)",
    "owners": "os.chown('/tmp', 0, 0) if os.getuid() else None",
    "attributes": "os.setxattr(os.__file__, 'user.x', b'x')",
    "memory of itself": "open('/proc/self/mem', 'r+b')",
    "memory of the parent": "open(f'/proc/{os.getppid()}/mem', 'rb')",
    "memory of the machine": "open('/dev/mem', 'rb')",
    "a terminal": "os.open('/dev/ptmx', os.O_RDWR)",
    "its input": "os.write(0, b'x')",
    "a shorter input": "os.ftruncate(0, 0)",
    "an input in memory": "mmap.mmap(0, 2)[0:1].__class__(b'x') and mmap.mmap(0, 2).flush()",
    "another user": "os.setresuid(0, 0, 0)",
    "other groups": "os.setgroups([0])",
    "another name": "call('setdomainname', b'x', 1)",
    "words of the kernel": "call('klogctl', 5, bytes(8), 0)",
    "memory that stays": "call('mlockall', 1)",
    "a key": "call('syscall', 248 if is_x86 else 217, b'user', b'x', b'x', 1, -3)",
    "a queue": "call('mq_open', b'/x', 66, 0o600, None)",
}

REFUSAL = """
import ctypes, mmap, os, platform, resource, signal, sys, time
libc = ctypes.CDLL(None, use_errno=True)
is_x86 = platform.machine() == 'x86_64'
def call(name, *arguments):
    if getattr(libc, name)(*arguments) == -1:
        raise OSError(ctypes.get_errno(), name)
def clone(flags):
    number = libc.syscall(56 if is_x86 else 220, flags | signal.SIGCHLD, 0, 0, 0, 0)
    if number == 0: os._exit(0)
    if number < 0: raise OSError(ctypes.get_errno(), 'clone')
def child():
    number = os.fork()
    if not number: time.sleep(10_000)
    return number
try: {code}
except (OSError, ValueError, TypeError) as error: print('refused', repr(error))
else: print('permitted')
"""


@pytest.mark.parametrize("code", REFUSED.values(), ids=REFUSED)
def test_what_reaches_further_is_refused(held: Shared, code: str) -> None:
    run = held.run(REFUSAL.format(code=code), stdin="input")
    assert run.stdout.startswith(b"refused"), run


@pytest.mark.skipif(platform.machine() != "x86_64", reason="instructions of x86-64")
@pytest.mark.parametrize("code", ["b814000000cd80c3", "b827000040" + "0f05c3"], ids=["i386", "x32"])
def test_calls_by_other_numbers_are_no_way_around(held: Shared, code: str) -> None:
    """`getpid` by the numbers of another architecture, from a file mapped as instructions."""
    act = f"""
import ctypes, mmap
with open('/tmp/code', 'w+b') as file:
    file.write(bytes.fromhex({code!r})); file.flush()
    code = mmap.mmap(file.fileno(), 8, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE | 4)
number = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()
print('refused' if number < 0 else number)
"""
    run = held.run(act)
    assert run.end == "died" or run.stdout == b"refused\n", run


SECRET = "a word of an earlier run"

SEARCH = """
import ctypes, gc, os, sys
def copied():
    libc, ends = ctypes.CDLL(None), os.pipe()
    spots = {id(each) >> 20 for each in gc.get_objects()}
    spots |= {id(each) >> 20 for kept in gc.get_objects() for each in gc.get_referents(kept)}
    spots |= {each + by for each in spots for by in (-1, 1)}
    for spot in spots:
        for at in range(spot << 20, spot + 1 << 20, 4096):
            if libc.write(ends[1], ctypes.c_void_p(at), 4096) == 4096:
                yield os.read(ends[0], 4096)
memory = b''.join(copied())
words = [word[::-1] for word in WORDS]
found = [word for word in words if word.encode() in memory]
print(len(memory) > 1 << 20, 'gc.get_objects'.encode() in memory, found)
"""


def test_memory_has_nothing_of_an_earlier_run(held: Shared) -> None:
    """As far as pages of the interpreter go: the code, input and output of earlier runs are none
    of them, whatever frames and objects a run finds."""
    kept = f"kept = [{SECRET!r} + str(n) for n in range(1000)]\nprint(input(), kept)"
    assert SECRET.encode() in held.run(kept, stdin=SECRET).stdout
    assert held.run(f"def f(x): return x + {SECRET!r}", function="f", arguments=[SECRET]).answered
    words = [SECRET[::-1]]
    run = held.run(f"WORDS = {words!r}{SEARCH}", limits=replace(USUAL, memory_mb=1024))
    assert run.stdout == b"True True []\n", run


FRAMES = """
import gc, sys
frame, found = sys._getframe(), []
while frame:
    found.append(repr(frame.f_locals) if frame.f_back else '')
    frame = frame.f_back
found += [repr(each) for each in gc.get_objects() if type(each) is dict and len(each) < 20]
words = [word[::-1] for word in WORDS]
print(len(found) > 5, [word for word in words if any(word in text for text in found)])
"""


def test_no_frame_tells_the_size_of_the_right_output_or_the_end_of_an_earlier_run(
    held: Shared,
) -> None:
    assert held.run("import os; os._exit(117)").end == "died"
    words = [word[::-1] for word in ("output_bytes", "'status': 117", "duration_s", "1234577")]
    code = f"WORDS = {words!r}"
    run = held.run(code + FRAMES, limits=replace(USUAL, output_bytes=1234577))
    assert run.stdout == b"True []\n", run


PROGRAMS = {
    "zeros": ("import os; os.write(1, b'4\\0' + b'2\\n')", b"4\x002\n"),
    "no unicode": ("import sys; sys.stdout.buffer.write(b'\\xff42')", b"\xff42"),
    "many lines": ("print('\\n' * 30_000, end='42')", b"\n" * 30_000 + b"42"),
    "a child's": ("import os\nif os.fork(): os.wait()\nelse: print(42)", b"42\n"),
    "a daemon's": (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    while os.getppid(): pass\n"
        "    os.write(1, b'42'); time.sleep(10_000)",
        b"",
    ),
    "of another program": (
        "import os, sys\nos.execv(sys.executable, [sys.executable, '-SsEc', 'print(42)'])",
        b"42\n",
    ),
    "for the answer": ("import os; os.dup2(3, 1); print('{\"value\": 42}', flush=True)", b""),
    "of a replaced stream": ("import io, sys; sys.stdout = io.StringIO(); print(42)", b""),
    "of a closed stream": ("import sys; sys.stdout.close(); print(42)", b""),
}


@pytest.mark.parametrize(("code", "stdout"), PROGRAMS.values(), ids=PROGRAMS)
def test_output_is_what_was_written_until_the_end(held: Shared, code: str, stdout: bytes) -> None:
    run = held.run(code)
    assert run.stdout == stdout and run.end in ("finished", "raised"), run


CodeGen = load("resources_servers", "code_gen")


def row(inputs: list[str], outputs: list[str], name: str | None = None) -> dict[str, Any]:
    tests = {"inputs": inputs, "outputs": outputs, "fn_name": name}
    return {
        "responses_create_params": {"input": "?"},
        "verifier_metadata": {"unit_tests": tests},
    }


LENGTHS = ["true", "false"] * 2
EVEN = row(["4", "3", "0", "7"], LENGTHS, "even")
WORDS = row(["4\n", "3\n", "0\n", "7\n"], ["YES\n", "NO\n"] * 2)


def verdicts(task: dict[str, Any], codes: list[str]) -> list[float]:
    """Rewards of wrong programs in order, with one zygote for all."""

    async def run() -> list[float]:
        settings = {"num_processes": 1, "unit_test_timeout_secs": HANG_S}
        async with mount({"code_gen": making(CodeGen, **settings)}) as peers:
            found = []
            for code in codes:
                items = [message_item(f"```python\n{code}\n```")]
                asked = {**task, "response": make_response("m", items, None)}
                found.append((await peers.call("code_gen", "/verify", asked, dict))["reward"])
            return found

    return asyncio.run(run())


BY_LENGTH = """
import gc, sys
def length():
    frame = sys._getframe()
    while frame:
        given = frame.f_locals.get('request')
        if isinstance(given, dict) and 'output_bytes' in given:
            return (given['output_bytes'] - (1 << 20)) // 2
        frame = frame.f_back
    return 0
"""
"""The bound on the output is twice the length of the right one, and a megabyte."""

EQUALS = """
class Any({base}):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 1
    {more}
def even(n): return Any()
"""

FUNCTIONS = {
    "the length": BY_LENGTH + "def even(n): return length() == 4",
    "an int": EQUALS.format(base="int", more=""),
    "a float": EQUALS.format(base="float", more="__float__ = lambda self: 1.0"),
    "a text": EQUALS.format(base="str", more="__str__ = __repr__ = lambda self: 'true'"),
    "a list": EQUALS.format(base="list", more="__iter__ = lambda self: iter([True])"),
    "a dict": EQUALS.format(
        base="dict",
        more="items = values = lambda self: [(1, True)]; __iter__ = lambda _: iter([1])",
    ),
    "a class of another": EQUALS.format(base="object", more="__class__ = bool"),
    "a number": EQUALS.format(base="__import__('numbers').Number", more="__int__ = lambda _: 1"),
    "a changing number": EQUALS.format(
        base="object", more="__float__ = lambda self: __import__('random').random()"
    ),
    "not a number": "def even(n): return float('nan')",
    "all numbers": "def even(n): return float('inf')",
    "two values": "import os\ndef even(n):\n"
    '    os.write(3, b\'{"value": true, "value": false}\'); os._exit(0)',
    "value and number": "import os\ndef even(n):\n"
    '    os.write(3, b\'{"value": true, "number": 0.0, "error": ""}\'); os._exit(0)',
    "truth": "import builtins, ctypes\nctypes.memset(id(False) + 16, 255, 8)\n"
    "builtins.bool = lambda _: True\ndef even(n): return True",
    "another encoder": "import json\njson.dumps = json.encoder.JSONEncoder.encode = None\n"
    "json.encoder.c_make_encoder = lambda *_: lambda *_: ['true', 'false']\n"
    "def even(n): return True",
    "no function": "import os\nos.write(3, b'{\"value\": true}')\nos._exit(0)",
    "what was asked before": "def even(n):\n    seen = open('/tmp/seen', 'a+'); seen.write('x')\n"
    "    seen.flush(); seen.seek(0); return len(seen.read()) % 2 == 1",
    "a generator": "def even(n): yield n % 2 == 0",
    "a coroutine": "async def even(n): return n % 2 == 0",
}
"""Functions that do not look at what they are given → none is right for both values."""


def test_no_function_forges_a_pass() -> None:
    honest = "def even(n): return n % 2 == 0"
    found = verdicts(EVEN, [each for code in FUNCTIONS.values() for each in (code, honest)])
    assert dict(zip(FUNCTIONS, found[::2], strict=True)) == dict.fromkeys(FUNCTIONS, 0.0)
    assert found[1::2] == [1.0] * len(FUNCTIONS)


FORGED = {
    "the length": BY_LENGTH + "print({4: 'YES', 3: 'NO'}.get(length(), 'YES'))",
    "all answers": "print('YES'); print('NO')",
    "both in a line": "print('YES\\rNO')",
    "a zero between": "import os; os.write(1, b'YES\\0NO')",
    "erased": "print('NO\\b\\bYES')",
    "the first and out": "import os; print('YES', flush=True); os._exit(0)",
    "the first and exit": "print('YES'); raise SystemExit(0)",
    "the first and an error": "import sys; sys.excepthook = lambda *_: print('NO'); print('YES')\n"
    "1 / 0",
    "a count in a file": "import os\nopen('/tmp/n', 'a').write('x')\n"
    "print('YES' if os.path.getsize('/tmp/n') % 2 else 'NO')",
    "a count in a device": "import os\nn = os.stat('/dev/null').st_mtime_ns\n"
    "print('NO' if n % 2 else 'YES')\ntry: os.utime('/dev/null')\nexcept OSError: pass",
    "a child that says it": "import os\nif os.fork(): os.wait(); print('YES')\nelse: print('NO')",
    "a child after the end": "import os\nif os.fork() == 0:\n    while os.getppid(): pass\n"
    "    print('NO', flush=True)\nelse: print('YES', flush=True); os._exit(0)",
    "the other tests": "import glob\nnames = ('/*/*verdict*', '/*/*/*/resources_servers')\n"
    "print(sum(map(glob.glob, names), []) or 'YES')",
    "an answer": 'import os; print(\'YES\'); os.write(3, b\'{"value": "NO", "stdout": "NO"}\')',
    "a million lines": "print('YES\\n' * 200_000)",
    "no unicode": "import os; os.write(1, b'YES\\xff')",
    "a number": "print('nan')",
    "memory": "import gc\nwords = [each for each in gc.get_objects() if isinstance(each, dict)"
    " and 'expected' in each]\nprint(words[0]['expected'] if words else 'YES')",
    "a program": "import os, sys\n"
    "os.execv(sys.executable, [sys.executable, '-SsEc', 'print(\"YES\")'])",
}


def test_no_program_forges_a_pass() -> None:
    honest = "print('NO' if int(input()) % 2 else 'YES')"
    found = verdicts(WORDS, [each for code in FORGED.values() for each in (code, honest)])
    assert dict(zip(FORGED, found[::2], strict=True)) == dict.fromkeys(FORGED, 0.0)
    assert found[1::2] == [1.0] * len(FORGED)
