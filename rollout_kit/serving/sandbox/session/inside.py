"""The first process of a session: it starts the session's processes, and all end with it. Standard
library only.

It serves one socket: the end of the socket is the end of the session. It alone is outside of the
root directory that the session's processes see, holds the capabilities for mounts, and reads none
of what they print.
"""

import errno
import fcntl
import gc
import json
import os
import resource
import select
import signal
import socket
import struct
import termios
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from .. import kernel, seccomp
from . import changes, files, patch
from .layers import ROOT, Layers
from .prestart import LOADER, SHELL, CommandFile, StartedShell

CONTROL, BIRTHS, OLDER = 3, 4, 5
"""Descriptors: the socket to the server, the socket to the warden, and a pipe that ends when the
session has become the warden's child."""

KEPT = (0, 1, 2, 3, 4, 5, 6, 7, 10)
"""Capabilities inside of the session: owners of files, users, signals, low ports."""

MESSAGE_SIZE = 1 << 17

TIOCSPTLCK, TIOCGPTPEER = 0x40045431, 0x5441

OVER_MEMORY, OVER_TIME = signal.SIGUSR1, signal.SIGUSR2
"""Signals of the warden."""

SHORT_S = 0.02
"""A session that is busy for less is not reported to the warden, which would measure it in vain."""

Work = Callable[[], int]


class FirstProcess:
    """Serves the requests of one session, until the socket ends."""

    def __init__(self, number: int, request: dict[str, Any], overlays: Any, binds: Any) -> None:
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
        self._number, self._limits = number, request["limits"]
        self._control = socket.socket(fileno=CONTROL)
        self._births = socket.socket(fileno=BIRTHS)
        self._layers = Layers(self._limits["disk_mb"], overlays, binds)
        self._tell_warden({"ready": True}, [os.open("/", os.O_RDONLY | os.O_DIRECTORY)])
        kernel.call("sethostname", b"session", 7)
        kernel.forbid_capabilities(KEPT)
        self._running: dict[int, tuple[int, Callable[[int], Any]]] = {}
        self._is_busy = False
        self._busy_since: float | None = None
        self._spare: StartedShell | None = None
        self._like: dict[str, Any] | None = None
        """A request like that of the last command, for which the next shell waits."""
        self._lacks_spare = False
        self._wake, waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(waker)
        for each in (signal.SIGCHLD, OVER_MEMORY, OVER_TIME):
            signal.signal(each, _do_nothing)
        seccomp.compile_filter(True)

    def serve(self) -> NoReturn:
        self._reply({"ready": True})
        waiting = select.poll()
        for each in (CONTROL, self._wake, OLDER):
            waiting.register(each, select.POLLIN)
        while True:
            is_unsaid = self._busy_since is not None and not self._is_busy
            for descriptor, _ in waiting.poll(1000 * SHORT_S if is_unsaid else None):
                if descriptor == CONTROL:
                    self._receive()
                elif descriptor == self._wake:
                    self._notice(os.read(self._wake, 1 << 10))
                else:
                    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
                    waiting.unregister(OLDER)
                    os.close(OLDER)
            self._tell_busy()
            if self._lacks_spare and not self._running and not waiting.poll(0):
                self._start_spare()

    def _receive(self) -> None:
        message, given, _, _ = socket.recv_fds(self._control, MESSAGE_SIZE, 4)
        if not message:
            os._exit(0)
        request = json.loads(message)
        try:
            self._perform(request, given)
        except OSError as error:
            self._reply({"id": request["id"], "error": str(error)})
        finally:
            for each in given:
                os.close(each)

    def _perform(self, request: dict[str, Any], given: list[int]) -> None:
        operation, number = request["op"], request["id"]
        if operation == "exec":
            if not self._give_spare(number, request):
                self._start_command(number, request, given)
            self._like, self._lacks_spare = {**request, "command": "exit"}, True
        elif operation == "terminal":
            self._open_terminal(request)
        elif operation == "call":
            self._start(number, lambda: self._call(request, given))
        elif operation == "listen":
            self._listen(number)
        elif operation == "patch":
            self._start(number, lambda: self._write_patch(request, given))
        elif operation == "begin":
            self._tell_warden({"began": True})
        elif operation == "kill":
            self._kill(request["which"], request["signal"])
        elif operation == "snapshot":
            self._snapshot(number, request["name"])
        else:
            self.end_processes()
            self._lacks_spare, error = True, ""
            if operation == "seal":
                self._layers.seal()
            elif operation == "reset":
                self._layers.reset()
            elif operation == "restore":
                error = self._layers.restore(request["name"])
            self._reply({"id": number, "error": error} if error else {"id": number, "status": 0})

    def _start(self, number: int, work: Work, then: Callable[[int], Any] | None = None) -> int:
        """Do `work` in a process of the session; reply with its status, or do `then` with it."""
        child = self._fork(work)
        self._running[child] = (number, then or self._answer(number))
        return child

    @staticmethod
    def _fork(work: Work) -> int:
        """Do `work` in a process of the session, which ends with its status."""
        child = os.fork()
        if not child:
            status = 127
            try:
                _be_ordinary()
                status = work()
            finally:
                os._exit(status)
        return child

    def _start_command(self, number: int, request: dict[str, Any], given: list[int]) -> None:
        command = CommandFile()
        try:
            command.give(request["command"])
            self._start(number, lambda: self._execute(request, [*given, *command.theirs]))
        finally:
            command.close()

    def _start_spare(self) -> None:
        """Have a shell wait for a further command like the last one."""
        self._lacks_spare = False
        if (like := self._like) is None:
            return
        self._drop_spare()
        with suppress(OSError):  # then the next command has to start its own
            self._spare = StartedShell(
                like, lambda given: self._fork(lambda: self._execute(like, given))
            )

    def _drop_spare(self) -> None:
        if self._spare is not None:
            with suppress(ProcessLookupError):
                os.kill(self._spare.child, signal.SIGKILL)
            self._spare.close()
            self._spare = None

    def _give_spare(self, number: int, request: dict[str, Any]) -> bool:
        """Let the shell that waits do it; False if there is none for such a command."""
        spare = self._spare
        if spare is None or not spare.takes(request):
            return False
        self._spare = None
        try:
            spare.give(request["command"])
        except OSError:
            spare.close()
            return False
        self._running[spare.child] = (number, self._answer(number))
        try:
            self._reply({"id": number, "streams": True}, spare.outputs)
        finally:
            spare.close()
        return True

    def _answer(self, number: int) -> Callable[[int], Any]:
        return lambda status: self._reply({"id": number, "status": status})

    def _kill(self, number: int, which: int) -> None:
        for child, (id, _) in self._running.items():
            if id == number:
                with suppress(ProcessLookupError):
                    os.killpg(child, which)
                with suppress(ProcessLookupError):  # before it has its own group
                    os.kill(child, which)

    def _snapshot(self, number: int, name: str) -> None:
        if error := self._layers.refuse_snapshot(name):
            self._reply({"id": number, "error": error})
            return

        def work() -> int:
            try:
                self._layers.copy_snapshot(name)
            except OSError as error:
                return min(error.errno or 1, 100)
            return 0

        def then(status: int) -> None:
            if status:
                why = os.strerror(status) if status > 0 else "it was killed"
                self._reply({"id": number, "error": f"no snapshot was made: {why}"})
            else:
                self._layers.keep_snapshot(name)
                self._reply({"id": number, "status": 0})

        self._start(number, work, then)

    def _listen(self, number: int) -> None:
        """Hand out a socket on which only programs of the session can connect."""
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            sock.listen(64)
            self._reply({"id": number, "status": 0}, [sock.fileno()])

    def _open_terminal(self, request: dict[str, Any]) -> None:
        master = os.open("/devices/pts/ptmx", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        fcntl.ioctl(master, TIOCSPTLCK, struct.pack("i", 0))
        slave = fcntl.ioctl(master, TIOCGPTPEER, os.O_RDWR | os.O_NOCTTY)
        size = struct.pack("4H", request["rows"], request["columns"], 0, 0)
        fcntl.ioctl(master, termios.TIOCSWINSZ, size)

        def work() -> int:
            fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
            return self._execute(request, [slave, slave, slave])

        try:
            self._start(request["id"], work)
            self._reply({"id": request["id"], "started": True}, [master])
        finally:
            os.close(slave)
            os.close(master)

    def _execute(self, request: dict[str, Any], given: Sequence[int]) -> int:
        """Become a command, with the descriptors of its streams and perhaps of its CommandFile.
        What prevents it is written where the command's errors go."""
        _place(given)
        try:
            self._confine()
            environment = _change_user(request)
            os.chdir(request["cwd"])
            with suppress(FileNotFoundError):
                command = LOADER if len(given) > 3 else request["command"]
                os.execve(SHELL, [SHELL, "-c", command], environment)
            os.closerange(3, 5)
            with suppress(FileNotFoundError):
                os.execve("/bin/sh", ["/bin/sh", "-c", request["command"]], environment)
            os.write(2, b"the root file system has neither /bin/bash nor /bin/sh\n")
        except (OSError, ValueError) as error:
            os.write(2, f"the command could not be started: {error}\n".encode())
        return 127

    def _call(self, request: dict[str, Any], given: list[int]) -> int:
        """Do something with files, as a process of the session."""
        os.dup2(given[1], 20)
        os.dup2(given[0], 21)
        os.dup2(20, 3)
        os.dup2(21, 4)
        os.closerange(5, 1 << 16)
        with open(3, "wb") as out:
            try:
                is_packing = request["function"] == "changes"
                changed = self._layers.list_changes(whole=bool(request.get("whole")))
                found = changes.find(changed) if is_packing else None
                self._confine()
                _change_user(request)
                with suppress(OSError):
                    os.chdir(request["cwd"])
                if found is not None:
                    rules = changes.Rules(*request["rules"])
                    changes.pack(found, rules, 4, out, request["most"])
                else:
                    files.CALLS[request["function"]](request, 4, out)
            except (OSError, ValueError, RecursionError, MemoryError) as error:
                out.write(json.dumps({"error": str(error) or repr(error)}).encode() + b"\n")
        return 0

    def _write_patch(self, request: dict[str, Any], given: list[int]) -> int:
        os.dup2(given[0], 20)
        os.dup2(20, 3)
        os.closerange(4, 1 << 16)
        kernel.drop_capabilities(KEPT)
        seccomp.install(in_session=True)
        with open(3, "wb") as out:
            patch.write_patch(self._layers.list_changes(), request["only"], request["most"], out)
        return 0

    def _confine(self) -> None:
        """Give up what the first process has."""
        os.chroot(ROOT)
        os.chdir("/")
        os.umask(0o022)
        limits = self._limits
        for kind, most in (
            (resource.RLIMIT_DATA, limits["memory_mb"] << 20),
            (resource.RLIMIT_NPROC, limits["num_processes"]),
            (resource.RLIMIT_NOFILE, limits["open_files"]),
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_MEMLOCK, 64 << 10),
            (resource.RLIMIT_MSGQUEUE, 0),
            (resource.RLIMIT_SIGPENDING, 1 << 10),
            (resource.RLIMIT_NICE, 0),
            (resource.RLIMIT_RTPRIO, 0),
        ):
            hard = resource.getrlimit(kind)[1]
            most = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(kind, (most, most))
        kernel.drop_capabilities(KEPT)
        seccomp.install(in_session=True)

    def end_processes(self) -> None:
        """Kill all other processes of the session and wait for their end."""
        with suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        self._reap(wait=True)

    def _notice(self, signals: bytes) -> None:
        if OVER_TIME in signals:
            self._reply({"event": "time"})
            os._exit(0)
        if OVER_MEMORY in signals:
            self._reply({"event": "memory"})  # before the ends that it explains
            self.end_processes()
        self._reap()

    def _reap(self, wait: bool = False) -> None:
        with suppress(ChildProcessError):
            while True:
                child, status = os.waitpid(-1, 0 if wait else os.WNOHANG)
                if not child:
                    self._has_children = True
                    return
                if self._spare is not None and child == self._spare.child:
                    self._spare.close()
                    self._spare = None
                elif found := self._running.pop(child, None):
                    found[1](os.waitstatus_to_exitcode(status))
        self._has_children = False

    def _tell_busy(self) -> None:
        is_busy = bool(self._running)
        if not is_busy:
            self._reap()
            is_busy = self._has_children and self._list_children() != [self._spare_pid]
        now = time.monotonic()
        if not is_busy:
            self._busy_since = None
        elif self._busy_since is None:
            self._busy_since = now
        is_short = self._busy_since is not None and now - self._busy_since < SHORT_S
        if is_busy != self._is_busy and not is_short:
            self._is_busy = is_busy
            self._tell_warden({"busy": is_busy})

    @property
    def _spare_pid(self) -> int:
        return self._spare.child if self._spare else 0

    @staticmethod
    def _list_children() -> list[int]:
        with open("/proc/self/task/1/children") as file:
            return [int(each) for each in file.read().split()]

    def _tell_warden(self, found: dict[str, Any], given: list[int] | None = None) -> None:
        message = json.dumps({"number": self._number, **found}).encode()
        socket.send_fds(self._births, [message], given or [])
        for each in given or ():
            os.close(each)

    def _reply(self, found: dict[str, Any], given: list[int] | None = None) -> None:
        try:
            socket.send_fds(self._control, [json.dumps(found).encode()], given or [])
        except OSError as error:
            if error.errno in (errno.EPIPE, errno.ECONNRESET):
                os._exit(0)
            raise


def _be_ordinary() -> None:
    """Undo, in a child, what the first process has set for itself."""
    signal.set_wakeup_fd(-1)
    for each in (signal.SIGCHLD, OVER_MEMORY, OVER_TIME, signal.SIGPIPE):
        signal.signal(each, signal.SIG_DFL)
    os.setsid()


def _place(given: Sequence[int]) -> None:
    """Have only these descriptors, from that of the standard input on."""
    for place, each in enumerate(given):
        os.dup2(each, 20 + place)
    for place in range(len(given)):
        os.dup2(20 + place, place)
    os.closerange(len(given), 1 << 16)


def _change_user(request: dict[str, Any]) -> dict[str, str]:
    """Become the user of a request, for good; its environment."""
    user, environment = str(request.get("user") or ""), request.get("env", {})
    if user in ("", "0", "root"):
        return environment
    number, group, home = files.find_user(user)
    os.setgroups([group])
    os.setresgid(group, group, group)
    os.setresuid(number, number, number)
    return {**environment, "HOME": home, "USER": user} if home else environment


def _do_nothing(*_: Any) -> None:
    """The wake-up descriptor says which signal came."""


def run(number: int, request: dict[str, Any], overlays: Any, binds: list[str]) -> NoReturn:
    """Be the first process of a session, whose descriptors are in place."""
    try:
        gc.disable()
        FirstProcess(number, request, overlays, binds).serve()
    except BaseException as error:
        with suppress(OSError), socket.socket(fileno=CONTROL) as control:
            control.send(json.dumps({"fatal": f"{type(error).__name__}: {error}"}).encode())
    finally:
        os._exit(1)
