"""Code that a model wrote, at its worst: nothing gets out, all ends, the next run is right."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import HANG_S, NO_NAMESPACES, alive, eventually, may_isolate, read_process

from rollout_kit.errors import ConfigError
from rollout_kit.serving.process_tree import family
from rollout_kit.serving.sandbox.limits import SandboxLimits, SandboxRun
from rollout_kit.serving.sandbox.protections import ESSENTIAL, FURTHER
from rollout_kit.serving.sandbox.sandbox import Sandbox

USUAL = SandboxLimits(time_s=HANG_S, memory_mb=256, output_bytes=1 << 16)

SHORT = replace(USUAL, time_s=0.4)
"""For code that is never done."""


class Held:
    """One sandbox with one zygote for all tests: so each finds what those before it have left."""

    def __init__(self, runner: asyncio.Runner, sandbox: Sandbox) -> None:
        self.runner, self.sandbox = runner, sandbox

    def run(self, code: str, *, limits: SandboxLimits = USUAL, **how: Any) -> SandboxRun:
        return self.runner.run(self.sandbox.run(code, limits=limits, **how))


pytestmark = pytest.mark.skipif(not may_isolate(), reason=NO_NAMESPACES)


@pytest.fixture(scope="module")
def opened() -> Iterator[Held]:
    with asyncio.Runner() as runner:
        sandbox = Sandbox(1)
        runner.run(sandbox.start())
        yield Held(runner, sandbox)
        runner.run(sandbox.close())


@pytest.fixture
def held(opened: Held) -> Iterator[Held]:
    """Whatever a test has done, no process of it is left, and the next run is right."""
    yield opened
    assert _runs() == []
    run = opened.run("print(sum(map(int, input().split())))", stdin="17 25")
    assert (run.end, run.stdout) == ("finished", b"42\n")


def _runs() -> list[int]:
    """Processes below the zygotes of this process."""
    found = []
    for pid in family(os.getpid()):
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        levels = next(line for line in status.splitlines() if line.startswith("NSpid")).split()
        own = len(Path("/proc/self/status").read_text().split("NSpid:")[1].split("\n")[0].split())
        if len(levels) - 1 > own + 1:
            found.append(pid)
    return found


def test_a_program_reads_and_writes(held: Held) -> None:
    run = held.run("import sys\nfor line in sys.stdin: print(line.strip()[::-1])", stdin="ab\ncd")
    assert (run.end, run.stdout, run.error) == ("finished", b"ba\ndc\n", "")


@pytest.mark.parametrize(
    ("code", "arguments", "value"),
    [
        ("def f(a, b): return a + b", [1, 2], 3),
        ("class Solution:\n    def f(self, a): return a[::-1]", [[1, 2]], [2, 1]),
        ("def f(): return (1, 2)", [], [1, 2]),
        ("def f(): return 1e400", [], float("inf")),
        ("from fractions import Fraction\ndef f(): return Fraction(1, 2)", [], 0.5),
        ("from decimal import Decimal\ndef f(): return [Decimal(2)]", [], [2]),
        ("from decimal import Decimal\ndef f(): return Decimal('0.1')", [], 0.1),
        ("def f(): return 2 ** 100", [], 2**100),
        ("def f(): return [None, True, 'ä', {'a': 1.5}]", [], [None, True, "ä", {"a": 1.5}]),
        ("def f():\n    print('noise' * 100_000)\n    return 5", [], 5),
    ],
)
def test_a_function_returns_a_value(
    held: Held, code: str, arguments: list[Any], value: Any
) -> None:
    run = held.run(code, function="f", arguments=arguments)
    assert (run.end, run.value) == ("finished", value)
    assert type(run.value) is type(value)


@pytest.mark.parametrize(
    ("value", "looks_like"),
    [
        ("{1, 2}", [1, 2]),
        ("{(1, 2): 3}", {"[1, 2]": 3}),
        ("3 + 0j", 3),
        ("type('Any', (), {'__eq__': lambda *_: True})()", 5),
    ],
)
def test_what_json_has_no_word_for_equals_nothing(held: Held, value: str, looks_like: Any) -> None:
    run = held.run(f"def f(): return {value}", function="f")
    assert run.end == "finished" and run.value != looks_like


@pytest.mark.parametrize(
    ("code", "end", "error"),
    [
        ("1 / 0", "raised", "ZeroDivisionError"),
        ("def f(:", "raised", "SyntaxError"),
        ("raise SystemExit(3)", "finished", ""),
        ("import os; os._exit(3)", "died", ""),
        ("import os; os.abort()", "died", ""),
        ("while True: pass", "time", ""),
        ("import time; time.sleep(60)", "time", ""),
        (
            "import threading, time; threading.Thread(target=time.sleep, args=[60]).start()",
            "time",
            "",
        ),
        ("while True: print('x' * 10_000)", "output", ""),
        ("import os\nwhile True: os.write(3, b'x' * 10_000)", "output", ""),
        ("x = bytearray(10**10)", "raised", "MemoryError"),
        ("x = []\nwhile True: x.append(bytearray(1 << 20))", "raised", "MemoryError"),
        ("open('/tmp/x', 'wb').write(bytes(100 << 20))", "raised", "OSError"),
        ("'9' * 10**7 * 2 + str(9 ** 10 ** 9)", "time", ""),
    ],
)
def test_everything_ends_within_its_limit(held: Held, code: str, end: str, error: str) -> None:
    run = held.run(code, limits=SHORT if end == "time" else USUAL)
    assert (run.end, error in run.error) == (end, True), run
    assert run.duration_s < USUAL.time_s


def test_a_program_may_leave_by_exit(held: Held) -> None:
    run = held.run("import atexit\natexit.register(print, 'last')\nprint('first')\nexit()")
    assert (run.end, run.stdout) == ("finished", b"first\nlast\n")


def test_threads_that_a_program_waits_for_finish_their_output(held: Held) -> None:
    code = "import threading\nthreading.Thread(target=lambda: print('from a thread')).start()"
    assert held.run(code).stdout == b"from a thread\n"


@pytest.mark.parametrize(
    "code",
    [
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
        "import os\nfor _ in range(3): os.fork()\nx = []\nwhile True: x.append(bytearray(1 << 20))",
        "import subprocess, sys\nwhile True:\n"
        "    try: subprocess.Popen([sys.executable, '-c', 'while 1: pass'])\n"
        "    except OSError: pass",
        "import sys; sys.setrecursionlimit(10**9)\ndef f(): f()\nf()",
    ],
    ids=["processes", "memory of many processes", "programs", "recursion"],
)
def test_a_bomb_is_defused(held: Held, code: str) -> None:
    run = held.run(code, limits=SHORT)
    assert run.end in ("time", "memory", "raised", "died"), run


def test_many_processes_share_one_bound_on_memory(held: Held) -> None:
    code = """
import os, time
for _ in range(3): os.fork()
x = bytearray(100 << 20)
time.sleep(10_000)
"""
    run = held.run(code, limits=SandboxLimits(time_s=HANG_S, memory_mb=400))
    assert run.end == "memory"


SHARED = {
    "mapped": "import mmap\nx = mmap.mmap(-1, 100 << 20)",
    "unmapped but for a page": """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
for _ in range(50):
    start = libc.mmap(None, 100 << 20, 3, 0x21, -1, 0)
    if start in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), 'refused')
    ctypes.memset(start, 1, 100 << 20)
    libc.munmap(ctypes.c_void_p(start + 4096), (100 << 20) - 4096)
""",
    "of a device": "import mmap\nx = mmap.mmap(open('/dev/zero', 'r+b').fileno(), 100 << 20)",
    "of a file": "import mmap\nf = open('/tmp/x', 'w+b')\nf.truncate(100 << 20)\n"
    "x = mmap.mmap(f.fileno(), 100 << 20)\nfor at in range(0, 100 << 20, 4096): x[at] = 1",
}


@pytest.mark.parametrize("code", SHARED.values(), ids=SHARED)
def test_shared_memory_escapes_no_limit(held: Held, code: str) -> None:
    run = held.run(code)
    assert run.end in ("raised", "died"), run
    assert run.end == "died" or "Error" in run.error


def test_files_and_processes_may_share_memory_within_the_limit(held: Held) -> None:
    code = """
import mmap, multiprocessing
with open('/tmp/x', 'w+b') as file:
    file.truncate(1 << 20)
    memory = mmap.mmap(file.fileno(), 1 << 20)
number = multiprocessing.get_context('fork').Value('i', 0)
def work():
    number.value, memory[0] = 42, 7
process = multiprocessing.get_context('fork').Process(target=work)
process.start(); process.join()
print(number.value, memory[0])
"""
    run = held.run(code)
    assert run.stdout == b"42 7\n", run


@pytest.mark.parametrize(
    "code",
    [
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n"
        "    if os.fork() == 0: time.sleep(60)",
        "import subprocess, sys\nsubprocess.Popen(['sleep', '60'], start_new_session=True)",
        "import os, signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "if os.fork() == 0:\n    os.setsid()\n    while True: signal.pause()",
    ],
    ids=["double fork", "session", "deaf"],
)
def test_no_daemon_outlives_its_run(held: Held, code: str) -> None:
    run = held.run(code)
    assert run.end in ("finished", "raised") and run.duration_s < USUAL.time_s


def test_nothing_of_one_run_is_there_for_the_next(held: Held) -> None:
    leave = """
import builtins, json, os, sys
open('/tmp/left', 'w').write('x'); os.mkdir('/tmp/folder')
os.environ['LEFT'] = 'x'; builtins.len = lambda _: 0; json.loads = None; sys.path.clear()
sys.modules['left'] = sys
os.umask(0o777); os.nice(19)
"""
    assert held.run(leave).end == "finished"
    found = held.run(
        "import os, sys, json\nprint(os.listdir('/tmp'), 'LEFT' in os.environ, len('ab'),"
        " json.loads('1'), 'left' in sys.modules, oct(os.umask(0)), os.nice(0) < 19)"
    )
    assert found.stdout == b"[] False 2 1 False 0o22 True\n"


SECRET = "no-run-may-ever-read-this"


@pytest.fixture
def secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Secrets where they lie on a real machine: in this process's environment and in files that
    anybody may read."""
    tmp_path.chmod(0o755)
    (tmp_path / "env.yaml").write_text(SECRET)
    monkeypatch.setenv("API_KEY", SECRET)
    return tmp_path


READ_ALL = """
import glob, os
found = set()
for pattern in [{folder!r} + '/*', '/proc/*/environ', '/proc/self/*', '/proc/*/root/etc/*',
                '/etc/*', '/root/*', '/root/.ssh/*', '/home/*/*', '/run/*', '/var/*', '/.old/*',
                '/tmp/*']:
    for path in glob.glob(pattern) + glob.glob(pattern, include_hidden=True):
        try: found.add(open(path, 'rb').read(10_000).decode('latin-1'))
        except OSError: pass
print(len(found), '\\n'.join(found), os.environ)
"""


def test_no_secret_can_be_read(held: Held, secrets: Path) -> None:
    run = held.run(READ_ALL.format(folder=str(secrets)))
    assert run.end == "finished" and run.stdout.startswith(b"1 ")  # /etc/ld.so.cache
    assert SECRET.encode() not in run.stdout


def test_no_link_leads_out(held: Held, secrets: Path) -> None:
    code = f"""
import os
os.symlink({str(secrets)!r}, '/tmp/out'); os.symlink('/..', '/tmp/up')
folder = {str(secrets)!r}
for path in ['/tmp/out/env.yaml', '/tmp/up' + folder + '/env.yaml', '/..' + folder]:
    print(os.path.exists(path))
os.chdir('/'); os.chdir('..'); os.chdir('..'); print(sorted(os.listdir('.')))
"""
    lines = held.run(code).stdout.decode().splitlines()
    assert lines[:3] == ["False"] * 3
    assert "work" not in lines[3] and "proc" not in lines[3]


def test_nothing_outside_can_be_written_or_removed(held: Held) -> None:
    code = """
import os, shutil, sys
for path in ['/', '/dev', '/usr/lib', os.path.dirname(os.__file__), sys.prefix, '/etc']:
    try: open(path + '/planted', 'w').close(); print('wrote', path)
    except OSError: pass
    try: os.chmod(path, 0o777); print('changed', path)
    except OSError: pass
os.chdir('/')
shutil.rmtree(os.path.dirname(os.__file__) + '/json', ignore_errors=True)
try: os.rmdir('/tmp'); print('removed /tmp')
except OSError: pass
print(os.path.exists(os.__file__))
"""
    assert held.run(code).stdout == b"True\n"


def test_no_socket_reaches_anything(held: Held, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    reached = []

    def accept(listening: socket.socket) -> None:
        try:
            while True:
                listening.accept()
                reached.append(listening.getsockname())
        except OSError:
            return

    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_UNIX) as unix,
        socket.socket(socket.AF_UNIX) as abstract,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
    ):
        unix.bind(str(tmp_path / "s"))
        abstract.bind(f"\0{tmp_path}")
        udp.bind(("127.0.0.1", 0))
        udp.setblocking(False)
        for each in (unix, abstract):
            each.listen()
        for each in (tcp, unix, abstract):
            threading.Thread(target=accept, args=[each], daemon=True).start()
        code = f"""
import socket
def tried(family, kind, address):
    try:
        with socket.socket(family, kind) as s:
            s.settimeout(1); s.connect(address); s.send(b'x')
        print('reached', address)
    except OSError as error: print('no')
tried(socket.AF_INET, socket.SOCK_STREAM, ('127.0.0.1', {tcp.getsockname()[1]}))
tried(socket.AF_INET, socket.SOCK_STREAM, ('192.0.2.1', 80))
tried(socket.AF_INET6, socket.SOCK_STREAM, ('::1', {tcp.getsockname()[1]}))
tried(socket.AF_INET, socket.SOCK_DGRAM, ('127.0.0.1', {udp.getsockname()[1]}))
tried(socket.AF_UNIX, socket.SOCK_STREAM, {str(tmp_path / "s")!r})
tried(socket.AF_UNIX, socket.SOCK_STREAM, '\\0' + {str(tmp_path)!r})
tried(socket.AF_VSOCK, socket.SOCK_STREAM, (2, 1024))
tried(socket.AF_NETLINK, socket.SOCK_RAW, (0, 0))
"""
        assert held.run(code).stdout == b"no\n" * 8
        with pytest.raises(BlockingIOError):
            udp.recv(1)
        for each in (tcp, unix, abstract):
            each.close()
    assert reached == []


def test_no_descriptor_but_four_is_open(held: Held) -> None:
    code = """
import os
def is_open(number):
    try: return bool(os.fstat(number))
    except OSError: return False
print([number for number in range(1024) if is_open(number)])
"""
    assert held.run(code).stdout == b"[0, 1, 2, 3]\n"


def test_signals_reach_no_other_process(held: Held) -> None:
    code = f"""
import os, signal
print(os.getppid())
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.killpg(0, signal.SIGTERM)
os.kill(0, signal.SIGKILL)
for pid in [{os.getpid()}, {os.getppid()}, -1, 2, 3, 4]:
    for number in [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM]:
        try: os.kill(pid, number); print('sent', pid)
        except ProcessLookupError: pass
"""
    assert held.run(code).stdout == b"0\n"


REFUSED_CALLS = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def tried(name, *arguments):
    print(name, getattr(libc, name)(*arguments) >= 0)
tried('ptrace', 16, 1, 0, 0)
tried('unshare', 0x10000000)
tried('unshare', 0x20000)
tried('mount', b'tmpfs', b'/tmp', b'tmpfs', 0, None)
tried('umount2', b'/tmp', 2)
tried('chroot', b'/tmp')
tried('pivot_root', b'/tmp', b'/tmp')
tried('setns', 0, 0)
tried('setuid', 0)
tried('setgid', 0)
tried('sethostname', b'x', 1)
tried('shmget', 0, 4096, 0o1777)
tried('memfd_create', b'x', 0)
tried('reboot', 0x1234567)
tried('mknod', b'/tmp/disk', 0o60666, 0x800)
tried('syscall', 435, 0, 0)
"""


def test_no_call_gains_a_right(held: Held) -> None:
    lines = held.run(REFUSED_CALLS).stdout.decode().splitlines()
    assert len(lines) == 16 and all(line.endswith(" False") for line in lines), lines


def test_a_set_uid_program_gains_nothing(held: Held) -> None:
    code = """
import os, shutil, subprocess, sys
shutil.copy(sys.executable if os.path.exists(sys.executable) else os.__file__, '/tmp/x')
os.chmod('/tmp/x', 0o6777)
print(os.getuid() != 0, open('/dev/null', 'w').write('x'))
"""
    assert held.run(code).stdout == b"True 1\n"


FORGED = """
import json, os, sys
def f():
    {act}
    return 'wrong'
"""


@pytest.mark.parametrize(
    "act",
    [
        "os.closerange(0, 64)",
        "os._exit(0)",
        "sys.exit(0)",
        'os.write(3, b\'{"value": "pass"}\')',
        'os.write(3, b"[" * 50_000); os._exit(0)',
        'os.write(3, b"9" * 50_000); os._exit(0)',
        "[os.write(n, b'x') for n in range(5, 64) if os.path.exists('/dev/null')]",
        "json.dumps = lambda *_: '{}'",
        "sys.modules['__main__'] = None; json.dumps = None; os.write = None",
        'os.write(3, b\'{"sandbox": "x"}\'); os._exit(120)',
    ],
)
def test_a_forged_answer_is_no_more_than_an_answer(held: Held, act: str) -> None:
    """The expected value is never in there: what can be forged is a value, as any code can."""
    run = held.run(FORGED.format(act=act), function="f")
    assert run.value == "wrong" if run.answered else run.value is None


def test_what_happens_at_import_is_no_answer(held: Held) -> None:
    code = "import os; print('all tests passed'); os._exit(0)\ndef f(): return 1"
    run = held.run(code, function="f")
    assert (run.answered, run.value, run.stdout) == (False, None, b"")


@pytest.mark.parametrize(
    "code",
    [
        "print(open(0).read())",
        "print(open('/dev/stdin').read())",
        "import os; print(os.read(0, 9).decode())",
    ],
)
def test_standard_input_has_its_usual_names(held: Held, code: str) -> None:
    assert held.run(code, stdin="abc").stdout == b"abc\n"


def test_runs_side_by_side_do_not_meet(held: Held) -> None:
    async def main() -> list[SandboxRun]:
        code = "import os, time\nopen('/tmp/me', 'w').write(input())\ntime.sleep(0.2)\n"
        code += "print(open('/tmp/me').read(), os.listdir('/tmp'))"
        async with Sandbox(4) as sandbox:
            return await asyncio.gather(*(sandbox.run(code, stdin=str(n)) for n in range(8)))

    assert [run.stdout for run in asyncio.run(main())] == [
        f"{n} ['me']\n".encode() for n in range(8)
    ]


def test_a_cancelled_run_is_ended_and_a_dead_zygote_replaced(held: Held, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    waiting = "import os, sys, time\n"
    waiting += (
        "while not any(os.path.exists(f'{each}/go') for each in sys.path): time.sleep(0.01)\n"
    )
    waiting += "print(1)"

    async def running() -> None:
        async with asyncio.timeout(HANG_S):
            while not _runs():  # noqa: ASYNC110 - another process's doing
                await asyncio.sleep(0.01)

    async def main() -> SandboxRun:
        async with Sandbox(1, folders=[tmp_path]) as sandbox:
            task = asyncio.create_task(sandbox.run("while True: pass", limits=USUAL))
            await running()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert _runs() == []
            task = asyncio.create_task(sandbox.run(waiting, limits=USUAL))
            await running()
            for zygote in sandbox._zygotes._busy:
                zygote._process.kill()
            (tmp_path / "go").touch()
            return await task

    assert asyncio.run(main()).stdout == b"1\n"


KILLED = """
import asyncio
from rollout_kit.serving.sandbox.limits import SandboxLimits
from rollout_kit.serving.sandbox.sandbox import Sandbox

async def main():
    async with Sandbox(1) as sandbox:
        print("running", flush=True)
        await sandbox.run("import time; time.sleep(1000)", limits=SandboxLimits(time_s=1000))

asyncio.run(main())
"""


def test_nothing_outlives_a_server_that_is_killed() -> None:
    server = subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE)
    assert server.stdout and server.stdout.readline() == b"running\n"
    eventually(lambda: len(family(server.pid)) >= 4)  # itself, who waits, the zygote, the run
    started = family(server.pid)
    server.kill()
    server.communicate()
    eventually(lambda: not any(map(alive, started)))


def test_protections_are_tried_out_and_told(held: Held) -> None:
    protections = held.sandbox.protections
    assert protections.holding == dict.fromkeys([*ESSENTIAL, *FURTHER], True)
    assert str(protections).startswith("no network, contained processes, hidden files")


ELSEWHERE = """
import asyncio, json, sys
from rollout_kit.errors import ConfigError
from rollout_kit.serving.sandbox.limits import SandboxLimits
from rollout_kit.serving.sandbox.sandbox import Sandbox

async def main():
    try:
        async with Sandbox(1, unsafe=sys.argv[1] == "unsafe") as sandbox:
            codes = json.load(sys.stdin)
            runs = [await sandbox.run(code, limits=SandboxLimits(time_s=s)) for code, s in codes]
            print(json.dumps([sandbox.protections.holding, [run.stdout.decode() for run in runs]]))
    except ConfigError as error:
        print(json.dumps(str(error)))

asyncio.run(main())
"""

ENDLESS = "while True: pass"

DAEMON = """
import os, sys
if os.fork() == 0:
    os.setsid()
    os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(6161.3)"])
print('left')
"""


def _elsewhere(prepare: str, mode: str, codes: list[str]) -> Any:
    """The same in a user namespace, where this process is root of nothing else."""
    command = ["unshare", "--user", "--map-root-user", "sh", "-c", f'{prepare} exec "$@"', "sh"]
    command += [sys.executable, "-c", ELSEWHERE, mode]
    limited = [(code, 0.5 if code == ENDLESS else HANG_S) for code in codes]
    done = subprocess.run(
        command, input=json.dumps(limited), capture_output=True, text=True, timeout=HANG_S
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_without_root_a_user_namespace_holds_as_well(secrets: Path) -> None:
    group = "import os\nos.killpg(0, 15)\nos.kill(0, 9)\nprint('here')"
    codes = [READ_ALL.format(folder=str(secrets)), REFUSED_CALLS, DAEMON, group]
    holding, (read, refused, left, here) = _elsewhere("", "safe", codes)
    assert holding == dict.fromkeys([*ESSENTIAL, *FURTHER], True)
    assert SECRET not in read and " True" not in refused and left == "left\n" and here == "here\n"


NO_NAMESPACES = "echo 0 > /proc/sys/user/max_user_namespaces;"
"""Of that user namespace only: the machine's own setting is another."""


def test_where_nothing_holds_it_refuses(secrets: Path) -> None:
    told = _elsewhere(NO_NAMESPACES, "safe", [])
    assert "cannot be run safely on this machine (" in told and "+unsafe_code=true" in told


def test_where_nothing_holds_and_it_must_run_the_limits_do(secrets: Path) -> None:
    codes = ["print(input())", DAEMON, ENDLESS, "print('still')"]
    holding, printed = _elsewhere(NO_NAMESPACES, "unsafe", codes)
    assert printed == ["", "left\n", "", "still\n"]
    assert holding["limits"] and holding["closed environment"]
    assert not holding["hidden files"] and not holding["no network"]
    everyone = [read_process(path.name, "cmdline") for path in Path("/proc").glob("[0-9]*")]
    assert any(everyone) and not [each for each in everyone if "61.3" in each]


LEFT = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(6262.7)"])
time.sleep(1000)
"""


def test_without_a_room_a_cancelled_run_is_ended_too() -> None:
    def daemons() -> list[int]:
        """Whoever has these words on the command line, and is alive."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                if b"62.7" in path.read_bytes() and alive(int(path.parent.name)):
                    found.append(int(path.parent.name))
        return found

    async def main() -> str:
        sandbox = Sandbox(1, unsafe=True)
        sandbox._kind = "bare"
        async with sandbox:
            task = asyncio.create_task(sandbox.run(LEFT, limits=USUAL))
            async with asyncio.timeout(HANG_S):
                while not daemons():  # noqa: ASYNC110 - another process's doing
                    await asyncio.sleep(0.02)
            folder = os.readlink(f"/proc/{daemons()[0]}/cwd")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert daemons() == []
        return folder

    folder = asyncio.run(main())
    assert Path(folder).name.startswith("sandbox-") and not Path(folder).exists()


def test_folders_that_are_named_can_be_imported_from(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "helpful.py").write_text("ANSWER = 42")

    async def main() -> SandboxRun:
        async with Sandbox(1, folders=[tmp_path]) as sandbox:
            return await sandbox.run("import helpful; print(helpful.ANSWER)")

    assert asyncio.run(main()).stdout == b"42\n"


def test_another_system_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(ConfigError, match="it does not run Linux"):
        asyncio.run(Sandbox(1).start())
