"""A session keeps files and processes, and nothing in it reaches anything outside.

Where ROLLOUT_KIT_CONTAINER names an image, all of it runs in containers.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import support
from support import NO_NAMESPACES, eventually, find_container, may_isolate

from rollout_kit.errors import ConfigError
from rollout_kit.serving.sandbox.session import starting
from rollout_kit.serving.sandbox.session.bounds import (
    CommandResult,
    SessionEnded,
    SessionLimits,
    SessionRefused,
)
from rollout_kit.serving.sandbox.session.client import Sessions, ShellSession
from rollout_kit.serving.sandbox.session.output import Stream

CONTAINER = find_container()

pytestmark = pytest.mark.skipif(not (may_isolate() or CONTAINER), reason=NO_NAMESPACES)

SMALL = SessionLimits(memory_mb=300, disk_mb=64, num_processes=40, open_files=256)


def sessions_here(**given: Any) -> Sessions:
    return Sessions(container=CONTAINER, **given)


@asynccontextmanager
async def opened(limits: SessionLimits = SMALL, **given: Any) -> AsyncIterator[ShellSession]:
    async with sessions_here() as sessions, sessions.session(limits, **given) as session:
        await session.exec("mkdir -p /work", cwd="/")
        session.cwd = "/work"
        yield session


def held(act: Callable[[ShellSession], Any], limits: SessionLimits = SMALL) -> Any:
    async def main() -> Any:
        async with opened(limits) as session:
            return await act(session)

    return asyncio.run(main())


def test_files_stay_from_command_to_command_and_both_streams_are_told_apart() -> None:
    async def act(session: ShellSession) -> None:
        await session.exec("echo one > a; cd /tmp; export X=1")
        done = await session.exec("cat a; echo $X; echo two >&2; exit 3")
        assert (done.stdout, done.stderr, done.status) == ("one\n\n", "two\n", 3)
        assert not done.ended_by

    held(act)


COMMANDS = {
    "if": (2, "", "/bin/bash: eval: line 2: syntax error: unexpected end of file\n"),
    "echo 1\nnothing\necho $LINENO": (
        0,
        "1\n3\n",
        "/bin/bash: line 2: nothing: command not found\n",
    ),
    "set -u; echo ${REPLY-no} ${MAPFILE-no} $# $0": (0, "no no 0 /bin/bash\n", ""),
    "cat <<E\nhere\nE": (0, "here\n", ""),
    "echo $BASH_EXECUTION_STRING": (0, "echo $BASH_EXECUTION_STRING\n", ""),
    "ls /proc/self/fd | tr '\\n' ' '": (0, "0 1 2 3 ", ""),
    "cat": (0, "", ""),
    "kill -9 $$": (-9, "", ""),
    "": (0, "", ""),
}
"""What is the same for a session's first command and for those whose shell has started before."""


@pytest.fixture
def pipes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The pipes of shells that had started before their command."""
    found: list[int] = []
    move = Stream.move
    monkeypatch.setattr(
        Stream, "move", lambda self, source: (found.append(source), move(self, source))
    )
    return found


async def exec_when_started(session: ShellSession, pipes: list[int], command: str) -> CommandResult:
    """The result of a command whose shell has started before."""
    while True:
        before = len(pipes)
        done = await session.exec(command)
        if len(pipes) > before:
            return done
        await asyncio.sleep(0.01)


def test_a_shell_that_has_started_runs_a_command_as_a_new_one_does(pipes: list[int]) -> None:
    async def act(session: ShellSession) -> None:
        for command, expected in COMMANDS.items():
            for place in ("/tmp", "/work"):  # in another folder the shell is a new one
                done = await session.exec(command, cwd=place)
                assert (done.status, done.stdout, done.stderr) == expected, command
            done = await exec_when_started(session, pipes, command)
            assert (done.status, done.stdout, done.stderr) == expected, command
        for _ in range(2):
            done = await exec_when_started(session, pipes, "sh -c 'kill -11 $$'")
            assert done.status == 139 and "Segmentation fault" in done.stderr
        with pytest.raises(SessionRefused, match="UTF-8"):
            await session.exec("echo \ud800")

    held(act)


def test_a_shell_that_waits_sees_its_folder_made_anew_and_may_be_killed(
    pipes: list[int],
) -> None:
    async def act(session: ShellSession) -> None:
        await exec_when_started(session, pipes, "true")
        await session.call("write", b"x", path="/work2/new", mode=None)
        await session.exec("mv /work /old && mv /work2 /work", cwd="/")
        session.cwd = "/work"
        assert (await exec_when_started(session, pipes, "ls")).stdout == "new\n"
        await session.exec("pkill -9 bash")
        assert (await session.exec("echo on")).stdout == "on\n"

    held(act)


FILLS = """
import glob, os
for path in glob.glob("/proc/[0-9]*/fd/[0-9]"):
    try:
        if "memfd" in os.readlink(path):
            file = os.open(path, os.O_RDWR)
            print(os.pwrite(file, b"x" * (1 << 20), 0))
    except OSError:
        pass
"""


def test_files_of_a_shell_that_waits_do_not_grow(pipes: list[int]) -> None:
    async def act(session: ShellSession) -> None:
        await session.write_bytes("fill.py", FILLS.encode())
        loop = "while [ ! -e end ]; do python3 fill.py; done > out 2>&1 &"
        await exec_when_started(session, pipes, f"rm -f end; {loop}")
        while not (written := await session.read_bytes("out")):  # no command may run meanwhile
            continue
        await session.exec("touch end")
        assert {*written.split()} == {b"131072"}

    held(act)


def test_of_long_output_head_and_tail_are_kept() -> None:
    async def act(session: ShellSession) -> None:
        done = await session.exec("seq 100000", output_bytes=1_000)
        assert done.stdout.startswith("1\n2\n") and done.stdout.endswith("99999\n100000\n")
        assert "bytes are left out" in done.stdout and len(done.stdout) < 1_100

    held(act)


@pytest.mark.parametrize(
    ("command", "ended_by"),
    [("sleep 1000", "time"), ("yes", "output"), ("trap '' TERM INT HUP; sleep 1000", "time")],
)
def test_a_command_ends_at_its_limits_and_the_session_goes_on(command: str, ended_by: str) -> None:
    async def act(session: ShellSession) -> None:
        timeout_s = 0.3 if ended_by == "time" else 60
        assert (await session.exec(command, timeout_s=timeout_s)).ended_by == ended_by
        assert (await session.exec("echo still")).stdout == "still\n"

    held(act)


def test_a_process_in_the_background_runs_on_and_may_print() -> None:
    async def act(session: ShellSession) -> None:
        await session.exec("(until [ -e go ]; do sleep 0.01; done; echo x; echo done > end) &")
        await session.exec("touch go; until [ -e end ]; do sleep 0.01; done")
        assert (await session.exec("cat end")).stdout == "done\n"

    held(act)


def test_edit_replaces_one_place_or_says_why_not() -> None:
    async def act(session: ShellSession) -> None:
        await session.write_bytes("deep/a.txt", b"one\ntwo\none\n")
        with pytest.raises(SessionRefused, match=r"2 times, in lines 1, 3"):
            await session.edit("deep/a.txt", "one", "1")
        with pytest.raises(SessionRefused, match=r"does not contain.*Line 2 begins alike"):
            await session.edit("deep/a.txt", "two three", "1")
        assert await session.edit("deep/a.txt", "one", "1", everywhere=True) == 2
        assert await session.read_bytes("deep/a.txt") == b"1\ntwo\n1\n"
        for path, why in (("deep", "is a folder"), ("none", "No such file")):
            with pytest.raises(SessionRefused, match=why):
                await session.read_bytes(path)
        await session.exec("mkfifo pipe")
        with pytest.raises(SessionRefused, match="no regular file"):
            await session.read_bytes("pipe")

    held(act)


def test_a_terminal_is_typed_into_and_waited_for() -> None:
    async def act(session: ShellSession) -> None:
        terminal = await session.open_terminal("PYTHON_BASIC_REPL=1 python3 -q")
        terminal.send("6 * 7\n")
        text, found = await terminal.screen.read("\n42", 60)
        assert found, text
        terminal.send("import os; os.ttyname(0)\n")
        assert (await terminal.screen.read("/dev/pts/", 60))[1]
        terminal.send("exit(5)\n")
        assert (await terminal.status)["status"] == 5 and terminal.exit_status == 5
        await terminal.screen.read("never printed", 60)  # until the terminal is closed
        with pytest.raises(SessionRefused, match="has ended"):
            terminal.send("x\n")

    held(act)


def test_snapshots_resets_and_the_patch() -> None:
    async def act(session: ShellSession) -> None:
        await session.exec("echo one > a; mkdir d; echo x > d/y; ln -s a link")
        await session.seal()
        assert not await session.patch()
        await session.exec("echo two >> a; rm -r d; mkdir d; echo z > d/new; chmod +x a")
        patch = await session.patch()
        await session.snapshot("one")
        await session.exec("rm -rf * /usr/bin/gcc; printf more > b")
        assert "deleted file mode" in await session.patch("/usr")
        await session.restore("one")
        assert await session.patch() == patch
        await session.reset()
        assert not await session.patch()
        await session.write_bytes("/tmp/p", patch.encode())
        done = await session.exec("git apply --directory=work -p2 /tmp/p", cwd="/")
        assert done.status == 0, done
        assert await session.patch("/work") == patch
        with pytest.raises(SessionRefused, match="there is no snapshot 'two'; there are: one"):
            await session.restore("two")

    held(act)


TOOLS = """
git init -q . && git -c user.name=a -c user.email=a@b.c commit -q --allow-empty -m x &&
echo 'int main(void) { return 7; }' > a.c && gcc a.c -o a; ./a; echo $?
command -v node > /dev/null && node -e 'require("http").createServer().listen(0, function () {
  console.log("listens"); this.close() })' || echo listens
python3 -c 'import sqlite3; sqlite3.connect("x.db").execute("create table t (a)"); print("db")'
"""


def test_git_a_compiler_node_and_locks_on_files_work() -> None:
    async def act(session: ShellSession) -> None:
        done = await session.exec(TOOLS)
        assert done.stdout.splitlines() == ["7", "listens", "db"], done

    held(act, SessionLimits())


def test_a_session_ends_at_its_time_limit() -> None:
    async def act(session: ShellSession) -> None:
        with pytest.raises(SessionEnded, match=r"its time limit of 0\.5 s has passed"):
            await session.exec("sleep 1000", timeout_s=500)
        with pytest.raises(SessionEnded):
            await session.exec("true")

    held(act, SessionLimits(time_s=0.5))


def test_what_prevents_sessions_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(root: Path | None = None) -> str:
        with pytest.raises(ConfigError) as caught:
            await Sessions(root).start()
        return str(caught.value)

    assert asyncio.run(refuse(Path("/none"))) == "root: there is no folder /none"
    refusal = "raise OSError(1, 'unshare: Operation not permitted')"
    start = "from rollout_kit.serving.sandbox import kernel\n"
    start += f"def no(_): {refusal}\nkernel.unshare = no\n"
    monkeypatch.setattr(starting, "START", starting.START.replace("from", start + "from", 1))
    told = asyncio.run(refuse())
    assert "\n" not in told and "cannot keep shell sessions" in told
    assert "unshare: Operation not permitted" in told and "sysctl" in told


# Each of them prints BROKEN if it gets what it wants. None does harm where it does.
READS = {
    "the marker outside": "cat $MARKER && echo BROKEN",
    "the marker through the first process": "cat /proc/1/root$MARKER && echo BROKEN",
    "the root of the first process": "ls /proc/1/root/ && echo BROKEN",
    "its working folder": "ls /proc/1/cwd/ && echo BROKEN",
    "its descriptors": "ls /proc/1/fd && echo BROKEN",
    "its environment": "grep -a . /proc/1/environ && echo BROKEN",
    "its memory": "head -c 1 /proc/1/mem && echo BROKEN",
    "its mappings": "grep -q . /proc/1/maps && echo BROKEN",
    "the server": "[ -e /proc/$SERVER/stat ] && echo BROKEN",
    "a link out": "ln -s $MARKER l; cat l && echo BROKEN",
    "a link with dots": "ln -s ../../../../../..$MARKER l; cat l && echo BROKEN",
    "dots above the root": "cat ../../../../../..$MARKER && echo BROKEN",
    "a hard link": "ln $MARKER l && echo BROKEN",
    "shadow": "grep -q root: /etc/shadow && echo BROKEN",
    "a home": "ls /root/.ssh /home/* 2>/dev/null | grep -q . && echo BROKEN",
    "the layers": "ls /layers /lower /start /devices && echo BROKEN",
    "a layer by its mount": "cat /proc/self/mountinfo | grep -q $(dirname $MARKER) && echo BROKEN",
    "another root": 'chroot /tmp /bin/true 2>/dev/null; python3 -c \'import os; os.chroot("/")'
    "' && echo BROKEN",
    "a mount": "mkdir m; mount -t tmpfs t m && echo BROKEN",
    "a bind of proc": "mkdir m; mount --bind /proc m && echo BROKEN",
    "an overlay over all": "mkdir m; mount -t overlay o -o lowerdir=/:/usr m && echo BROKEN",
    "an unmount": "umount -l /usr && echo BROKEN",
    "a remount": "mount -o remount,rw /proc/sys && echo BROKEN",
    "new namespaces": "unshare -Urm true && echo BROKEN",
    "namespaces of the first process": "nsenter -t 1 -m -p true && echo BROKEN",
    "a device node": "mknod d b 254 0 && head -c 1 d && echo BROKEN",
    "kernel memory": "head -c 1 /proc/kcore && echo BROKEN",
    "kernel memory as a device": "mknod k c 1 1 && head -c 1 k && echo BROKEN",
    "a terminal of the machine": "mknod t c 4 1 && exec 3<>t && echo BROKEN",
    "settings of the kernel": "echo x > /proc/sys/kernel/hostname && echo BROKEN",
    "settings of the network": "echo 1 > /proc/sys/net/ipv4/ip_forward && echo BROKEN",
    "core dumps": "[ -w /proc/sys/kernel/core_pattern ] && echo x$(id) | "
    "tee /proc/sys/kernel/core_pattern && echo BROKEN",
    "sysrq": "[ -f /proc/sysrq-trigger ] && : >> /proc/sysrq-trigger && echo BROKEN",
    "a program with more rights": "cp /bin/cat c; chmod 6755 c; setpriv --reuid 1000 "
    "--clear-groups ./c /proc/1/environ && echo BROKEN",
    "file capabilities": "cp /bin/cat c; setcap cap_sys_admin+ep c && echo BROKEN",
    "ptrace": "python3 -c 'import ctypes; raise SystemExit(ctypes.CDLL(None).ptrace(16, 1, 0, 0)"
    " != 0)' && echo BROKEN",
    "bpf": "python3 -c 'import ctypes; raise SystemExit(ctypes.CDLL(None).syscall(321, 5, 0, 0)"
    " >= 0)' || echo BROKEN",
    "io_uring": "python3 -c 'import ctypes; raise SystemExit(ctypes.CDLL(None).syscall(425, 8, "
    "ctypes.create_string_buffer(120)) >= 0)' || echo BROKEN",
    "keys": "python3 -c 'import ctypes; raise SystemExit(ctypes.CDLL(None).syscall(250, 0, -3, 1)"
    " >= 0)' || echo BROKEN",
    "the listener outside": "echo x > /dev/tcp/127.0.0.1/$PORT && echo BROKEN",
    "an address of the internet": "timeout 2 bash -c 'echo x > /dev/tcp/192.0.2.1/9' "
    "&& echo BROKEN",
    "an abstract socket outside": "python3 -c 'import socket; socket.socket(socket.AF_UNIX)"
    '.connect("\\0" + "\'$ABSTRACT\'")\' && echo BROKEN',
    "a packet socket": "python3 -c 'import socket; socket.socket(17, 3, 3)' && echo BROKEN",
    "a raw socket": "python3 -c 'import socket; socket.socket(2, 3, 1)' && echo BROKEN",
    "a virtual socket": "python3 -c 'import socket; socket.socket(40, 1)' && echo BROKEN",
    "typing for another": "python3 -c 'import fcntl, os; m, s = os.openpty();"
    ' fcntl.ioctl(s, 0x5412, b"x")\' && echo BROKEN',
    "the end of the first process": "kill -9 1; sleep 0.1; kill -STOP 1; kill -TERM 1; "
    "[ ! -e /proc/1 ] && echo BROKEN",
    "a signal to a group outside": "kill -0 -$SERVER && echo BROKEN",
    "a limit raised": "ulimit -Hu unlimited 2>/dev/null && echo BROKEN",
    "memory that is in no list": "python3 -c 'import os; os.memfd_create(\"x\")' && echo BROKEN",
    "shared memory of System V": "python3 -c 'import ctypes; raise SystemExit(ctypes.CDLL(None)"
    ".shmget(0, 4096, 0o1600) < 0)' && echo BROKEN",
}


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    marker = tmp_path_factory.mktemp("outside") / "marker"
    marker.write_text("every user may read this")
    marker.chmod(0o644)
    abstract = socket.socket(socket.AF_UNIX)
    name = f"rollout-kit-{os.getpid()}"
    abstract.bind("\0" + name)
    abstract.listen()
    with abstract, socket.create_server(("127.0.0.1", 0)) as listener:
        yield {
            "MARKER": str(marker),
            "PORT": str(listener.getsockname()[1]),
            "SERVER": str(os.getpid()),
            "ABSTRACT": name,
        }


def test_no_attempt_gets_out(outside: dict[str, str]) -> None:
    """One session for each, as many at once as there are attempts."""

    async def main() -> dict[str, str]:
        async with sessions_here() as sessions:

            async def attempt(command: str) -> str:
                async with sessions.session(SMALL, environment=outside) as session:
                    done = await session.exec(command, cwd="/tmp", timeout_s=60)
                    assert (await session.exec("echo alive")).stdout == "alive\n"
                    return "BROKEN" if "BROKEN" in done.stdout else done.ended_by

            results: dict[str, str] = {}
            for name, command in READS.items():
                results[name] = await attempt(command)
            return results

    results = asyncio.run(main())
    assert len(results) >= 40
    told = {name for name, how in results.items() if how}
    # in a container, the machine's root is the session's: of the first process it sees numbers
    assert told <= ({"its descriptors", "shadow"} if CONTAINER else set())


BOMBS = {
    "processes": "python3 -c '\nimport os, time\nfor _ in range(300):\n"
    "    try:\n        if not os.fork(): time.sleep(60); os._exit(0)\n    except OSError:\n"
    '        print("refused", flush=True); break\nelse: time.sleep(60)\n\'; echo; pkill -9 python3',
    "processes of several users": "for u in 1 2 3; do setpriv --reuid $u --clear-groups python3 -c"
    " '\nimport os, time\nfor _ in range(100):\n"
    "    try:\n        if not os.fork(): time.sleep(60); os._exit(0)\n    except OSError:\n"
    '        print("refused", flush=True); break\n\' & done; wait %1 %2 %3; pkill -9 python3',
    "files": "head -c 300M /dev/zero > big || echo refused",
    "shared memory": "head -c 300M /dev/zero > /dev/shm/big || echo refused",
    "deleted files": "exec 5> big; rm big; head -c 300M /dev/zero >&5 || echo refused",
    "many files": "python3 -c '\nfor n in range(40_000):\n"
    '    try: open(f"f{n}", "w").close()\n    except OSError: print("refused"); break\n\'',
    "data of one process": "python3 -c '\ntry: x = bytearray(1 << 30)\n"
    'except MemoryError: print("refused")\n\'',
}


@pytest.mark.parametrize("command", BOMBS.values(), ids=BOMBS)
def test_a_limit_holds_for_the_session_as_a_whole(command: str) -> None:
    async def act(session: ShellSession) -> None:
        done = await session.exec(command, timeout_s=60)
        # in a container, the warden limits the processes of a session's root, not the kernel
        assert "refused" in done.stdout or (CONTAINER and done.ended_by == "memory"), done
        assert (await session.exec("rm -rf /work/* /dev/shm/*; echo alive")).stdout == "alive\n"

    held(act)


def test_memory_of_many_processes_is_bounded_from_outside() -> None:
    code = "import os, time\nfor _ in range(3): os.fork()\nx = bytearray(60 << 20)\ntime.sleep(600)"

    async def act(session: ShellSession) -> None:
        done = await session.exec(f"python3 -c '{code}'", timeout_s=300)
        assert done.ended_by == "memory"
        assert (await session.exec("echo alive")).stdout == "alive\n"

    held(act)


def test_two_sessions_share_nothing() -> None:
    async def main() -> None:
        async with (
            sessions_here() as sessions,
            sessions.session() as one,
            sessions.session() as two,
        ):
            await one.exec("echo secret > /tmp/s; echo s > /dev/shm/s; echo x > /usr/lib/s")
            await one.exec("python3 -m http.server 8000 > /tmp/log 2>&1 & sleep 60 &")
            told = await two.exec(
                "cat /tmp/s /dev/shm/s /usr/lib/s; ps aux | grep -c '[s]leep 60';"
                " echo x > /dev/tcp/127.0.0.1/8000 && echo BROKEN"
            )
            assert told.stdout in ("0\n", "")

    asyncio.run(main())


SERVER = """
import asyncio, os, sys
sys.path.insert(0, sys.argv[1])
from support import find_container
from rollout_kit.serving.sandbox.session.client import Sessions

async def main():
    async with Sessions(container=find_container()) as sessions:
        opened = [await sessions.create() for _ in range(5)]
        for each in opened:
            await each.exec(f"(setsid sleep 9{os.getpid()} &) ; echo $$ > /tmp/x")
            await each.open_terminal(f"sleep 9{os.getpid()}")
        print("ready", flush=True)
        await asyncio.sleep(1000)

asyncio.run(main())
"""


@pytest.mark.parametrize("which", ["server", "warden"])
def test_nothing_is_left_after_a_kill(which: str) -> None:
    mounts = Path("/proc/self/mounts").read_text()
    with subprocess.Popen(
        [sys.executable, "-c", SERVER, str(Path(support.__file__).parent)],
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            assert server.stdout is not None and server.stdout.readline() == "ready\n"
            eventually(lambda: len(_find_processes(f"sleep 9{server.pid}")) == 10)
            sleeping = _find_processes(f"sleep 9{server.pid}")
            (warden,) = {each for pid in sleeping for each in _ancestors(pid, "rk-warden")}
            family = {warden, *_descendants(warden)}
            assert len(family) > 15
            os.kill(server.pid if which == "server" else warden, signal.SIGKILL)
            eventually(lambda: not any(map(_lives, family)))
        finally:
            server.kill()
    if CONTAINER is None:  # an engine takes its mounts away later
        assert Path("/proc/self/mounts").read_text() == mounts


def _find_processes(command: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if b" ".join(words[:-1]).decode() == command:
                found.append(int(path.parent.name))
    return found


def _ancestors(pid: int, name: str) -> Iterator[int]:
    while pid:
        if Path(f"/proc/{pid}/comm").read_text().strip() == name:
            yield pid
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _descendants(pid: int) -> list[int]:
    found, waiting = [], [pid]
    while waiting:
        for children in Path(f"/proc/{waiting.pop()}/task").glob("*/children"):
            more = [int(each) for each in children.read_text().split()]
            found += more
            waiting += more
    return found


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_folders_may_be_named_relative_to_where_the_caller_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/file").write_text("seen")
    monkeypatch.chdir(tmp_path)

    async def main() -> str:
        async with (
            sessions_here(folders={"/opt/mine": "mine"}) as sessions,
            sessions.session() as one,
        ):
            return (await one.exec("cat /opt/mine/file")).stdout

    assert asyncio.run(main()) == "seen"
