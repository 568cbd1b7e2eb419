"""The process that starts sessions and watches what they use. Standard library only.

`client` starts it with a socket as standard input. Nothing of a session is on a disk: its files,
mounts, network and processes end with its first process, which ends with its socket or with the
warden, and the warden ends with the server.
"""

import gc
import json
import os
import resource
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from typing import Any, NoReturn

from .. import kernel, room, seccomp
from ..memory import Memory
from . import ground, inside

FIRST_USER, RANGE, NUM_RANGES = 0x2000_0000, 65_536, 7_000
"""Each session of a server that is root has its own users."""

NAME, SESSION_NAME = b"rk-warden", b"rk-session"
"""As processes are called in `/proc`."""

PR_SET_NAME = 15

PAUSE_S, LONGEST_S = 0.05, 2.0
"""Between two measurements: the second of a session whose processes use no time."""

SHARE = 0.1
"""Of its time that the warden measures at most, for each session."""

SPARE_PROCESSES = 4
"""Beyond the limit of a session, for its first process and the calls of the server."""


class Watched:
    """A session as the warden sees it."""

    def __init__(self, number: int, limits: dict[str, Any]) -> None:
        self.number, self.limits = number, limits
        self.pid: int | None = None
        self.files: int | None = None
        self.is_busy = False
        self.ticks, self.pause_s, self.due = -1, PAUSE_S, 0.0
        self.ends_at = time.monotonic() + limits["time_s"]


class Warden:
    def __init__(self, given: dict[str, Any], *, is_contained: bool) -> None:
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
        self._memory = Memory(is_apart=True)
        self._has_ranges = _enter()
        self._ground = ground.prepare(**given)
        self._maps_files = not is_contained or _can_map(self._ground.sources)
        self._births, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._births.setblocking(False)
        self._sessions: dict[int, Watched] = {}
        self._by_pid: dict[int, int] = {}
        self._next = int.from_bytes(os.urandom(2), "big") % NUM_RANGES

    def serve(self, control: socket.socket) -> None:
        wake, waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(waker)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        waiting = select.poll()
        for each in (control.fileno(), self._births.fileno(), wake):
            waiting.register(each, select.POLLIN)
        while True:
            for descriptor, _ in waiting.poll(self._find_pause()):
                if descriptor == control.fileno():
                    message, given, _, _ = socket.recv_fds(control, 1 << 16, 1)
                    if not message:
                        return
                    self._begin(json.loads(message), given[0], control)
                elif descriptor == wake:
                    os.read(wake, 1 << 10)
                else:
                    self._hear()
            self._reap()
            self._watch()

    def _begin(self, request: dict[str, Any], given: int, control: socket.socket) -> None:
        number = self._find_number()
        self._sessions[number] = Watched(number, request["limits"])
        older, newer = os.pipe2(os.O_CLOEXEC)
        maker = os.fork()
        if not maker:
            try:
                signal.set_wakeup_fd(-1)
                control.close()
                self._make(number, request, [given, self._theirs.fileno(), older], newer)
            except BaseException as error:
                with suppress(OSError), socket.socket(fileno=given) as ours:
                    ours.send(json.dumps({"fatal": str(error)}).encode())
            finally:
                os._exit(1)
        for each in (given, older, newer):
            os.close(each)

    def _find_number(self) -> int:
        while self._next in self._sessions:
            self._next = (self._next + 1) % NUM_RANGES
        number, self._next = self._next, (self._next + 1) % NUM_RANGES
        return number

    def _make(self, number: int, request: dict[str, Any], given: list[int], newer: int) -> None:
        """Make the namespaces of a session in a second process, because this one has to say who the
        users in them are. `newer` stays open until the session is the warden's child."""
        kernel.unshare(kernel.NEWNS)
        ours, theirs = socket.socketpair()
        second = os.fork()
        if not second:
            os.close(newer)
            ours.close()
            self._enter_session(number, request, given, theirs)
        theirs.close()
        if ours.recv(1):
            self._map_users(number, second)
            ours.send(b"x")
        os.waitpid(second, 0)
        os._exit(0)

    def _map_users(self, number: int, second: int) -> None:
        if not self._has_ranges:
            user = os.geteuid()
            room.write(f"/proc/{second}/setgroups", "deny")
            room.write(f"/proc/{second}/uid_map", f"0 {user} 1")
            room.write(f"/proc/{second}/gid_map", f"0 {user} 1")
            return
        first = FIRST_USER + number * RANGE
        if not self._maps_files:  # then the files of this machine's root are the session's root's
            _write_maps(second, f"0 0 1\n1 {first + 1} {RANGE - 1}")
            return
        _write_maps(second, f"0 {first} {RANGE}")
        users = os.open(f"/proc/{second}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        for place, source in enumerate(self._ground.sources):
            kernel.bind_mapped(source, f"{ground.LOWER}/{place}", users)
        os.close(users)

    def _enter_session(
        self, number: int, request: dict[str, Any], given: list[int], maker: socket.socket
    ) -> NoReturn:
        most = request["limits"]["num_processes"] + SPARE_PROCESSES
        resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
        if self._has_ranges:  # the kernel counts a namespace's processes for who has made it
            first = FIRST_USER + number * RANGE
            room.drop_root(first)
            kernel.prctl(kernel.PR_SET_DUMPABLE, 1)
        kernel.unshare(kernel.NEWUSER)
        maker.send(b"x")
        if not maker.recv(1):
            os._exit(1)
        maker.close()
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
        flags = kernel.NEWNS | kernel.NEWPID | kernel.NEWNET | kernel.NEWIPC | kernel.NEWUTS
        kernel.unshare(flags)
        first_process = os.fork()
        if first_process:
            with socket.socket(fileno=given[1]) as births:
                births.send(json.dumps({"number": number, "pid": first_process}).encode())
            os._exit(0)
        kernel.prctl(PR_SET_NAME, _address(SESSION_NAME))
        for place, each in enumerate(given):
            os.dup2(each, 200 + place)
        for place in range(len(given)):
            os.dup2(200 + place, inside.CONTROL + place, inheritable=False)
        os.closerange(inside.CONTROL + len(given), 1 << 16)
        binds = [place for place, _ in self._ground.binds]
        inside.run(number, request, self._ground.places, binds)

    def _hear(self) -> None:
        """Take what sessions say of themselves."""
        with suppress(BlockingIOError):
            while True:
                message, given, _, _ = socket.recv_fds(self._births, 1 << 10, 1)
                found = json.loads(message)
                session = self._sessions.get(found["number"])
                if session is None:
                    for each in given:
                        os.close(each)
                elif "pid" in found:
                    session.pid = found["pid"]
                    self._by_pid[found["pid"]] = session.number
                elif given:
                    (session.files,) = given
                elif "began" in found:
                    session.ends_at = time.monotonic() + session.limits["time_s"]
                else:
                    session.is_busy = found["busy"]
                    session.ticks, session.pause_s = -1, PAUSE_S
                    session.due = time.monotonic() + PAUSE_S - inside.SHORT_S

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while child := os.waitpid(-1, os.WNOHANG)[0]:
                self._hear()  # its birth may not have been heard of
                number = self._by_pid.pop(child, None)
                if number is not None:
                    session = self._sessions.pop(number)
                    if session.files is not None:
                        os.close(session.files)

    def _find_pause(self) -> float | None:
        """Milliseconds to the next measurement; None without one."""
        now = time.monotonic()
        due = [each.due if each.is_busy else each.ends_at for each in self._sessions.values()]
        return max(0.0, min(due) - now) * 1000 + 1 if due else None

    def _watch(self) -> None:
        now = time.monotonic()
        for session in self._sessions.values():
            if session.pid is None:
                continue
            if now >= session.ends_at:
                _signal(session.pid, inside.OVER_TIME)
                session.ends_at = now + LONGEST_S
            if session.is_busy and now >= session.due:
                self._measure(session)

    def _measure(self, session: Watched) -> None:
        """Measure what the session holds; the more seldom, the longer it has been at rest."""
        began = time.monotonic()
        first = str(session.pid)
        family = self._memory.find_family(first)
        ticks = self._memory.count_ticks(family)
        if ticks == session.ticks:
            session.pause_s = min(LONGEST_S, session.pause_s * 2)
        else:
            most = session.limits["memory_mb"] << 20
            is_over = len(family) > session.limits["num_processes"] + SPARE_PROCESSES
            if is_over or self._memory.measure_session(first, family) > most:
                _signal(int(first), inside.OVER_MEMORY)
            session.pause_s = PAUSE_S
        session.ticks = ticks
        took_s = time.monotonic() - began
        session.due = began + took_s + max(session.pause_s, took_s / SHARE)


def _signal(pid: int, which: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, which)


def _address(text: bytes) -> int:
    import ctypes

    _address.kept = ctypes.create_string_buffer(text)  # type: ignore[attr-defined]
    return ctypes.addressof(_address.kept)  # type: ignore[attr-defined]


def _enter() -> bool:
    """Have own mounts, to change them. Whether sessions can have ranges of users."""
    if os.geteuid() == 0 and room.has_user_ids():
        with suppress(PermissionError):
            kernel.unshare(kernel.NEWNS)
            kernel.mount("", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
            return True
    user, group = os.geteuid(), os.getegid()
    kernel.unshare(kernel.NEWNS | kernel.NEWUSER)
    room.write("/proc/self/setgroups", "deny")
    room.write("/proc/self/uid_map", f"0 {user} 1")
    room.write("/proc/self/gid_map", f"0 {group} 1")
    kernel.mount("", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
    return False


def _write_maps(pid: int, text: str) -> None:
    for kind in ("uid_map", "gid_map"):
        room.write(f"/proc/{pid}/{kind}", text)


def _can_map(sources: list[str]) -> bool:
    """Whether these files can have the owners that they have in a session. Those of a container's
    image cannot, because the kernel does not map its file system."""
    ours, theirs = socket.socketpair()
    with ours:
        child = os.fork()
        if not child:
            try:
                ours.close()
                kernel.unshare(kernel.NEWUSER)
                theirs.send(b"x")
                theirs.recv(1)
            finally:
                os._exit(0)
        theirs.close()
        try:
            if not ours.recv(1):
                return False
            _write_maps(child, f"0 {FIRST_USER} {RANGE}")
            users = os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
            try:
                for each in sources:
                    os.close(kernel.map_tree(each, users))
            finally:
                os.close(users)
        except OSError:
            return False
        finally:
            ours.close()  # with it the child ends
            os.waitpid(child, 0)
    return True


def end_leftovers() -> int:
    """Kill sessions whose warden is gone. There are none, unless the kernel failed to end them."""
    found = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            with open(f"/proc/{pid}/comm", "rb") as file:
                name = file.read().strip()
            if name == SESSION_NAME and _parent_name(pid) not in (NAME, SESSION_NAME):
                os.kill(int(pid), signal.SIGKILL)
                found += 1
    return found


def _parent_name(pid: str) -> bytes:
    with open(f"/proc/{pid}/stat") as file:
        parent = file.read().rpartition(")")[2].split()[1]
    with open(f"/proc/{parent}/comm", "rb") as file:
        return file.read().strip()


def main(parent: str, given: str) -> None:
    """Serve until the socket ends. `parent`: the id of the process to die with; empty for the first
    process of a container, which only ends with its socket. `given`: the arguments of
    `ground.prepare` as JSON."""
    if parent:
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != int(parent):
            os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.umask(0o022)
    sys.argv = [""]
    control = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    with suppress(OSError):
        room.write("/proc/self/oom_score_adj", "1000")
    kernel.prctl(PR_SET_NAME, _address(NAME))
    try:
        leftovers = end_leftovers()
        warden = Warden(json.loads(given), is_contained=not parent)
    except OSError as error:
        control.send(json.dumps({"error": str(error)}).encode())
        return
    if parent:
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)  # a change of users clears it
    seccomp.compile_filter(True)
    gc.collect()
    gc.freeze()
    control.send(json.dumps({"leftovers": leftovers}).encode())
    warden.serve(control)
