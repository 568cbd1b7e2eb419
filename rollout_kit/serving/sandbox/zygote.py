"""An isolated interpreter that forks itself for each run. Standard library only.

`keeper` starts it with a socket as standard input. Each message has the limits of one run and its
descriptors: program, standard input, standard output if it is read, answer. The zygote reads
neither code nor results, because the memory of later runs is a copy of its own. It measures the
memory of a run.

Processes: the one that was started, which waits outside; the zygote, first in its own process
namespace; a run, first in a nested one. Each dies with its parent.
"""

import gc
import json
import os
import resource
import select
import shutil
import signal
import site
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn, Self

from . import apart as apart  # a task imports it, when its file can no longer be read
from . import kernel, program, room, seccomp
from .memory import WATCH_S, WATCH_SHARE, Memory

STOP = b"stop"
"""Message that ends the current run; ignored if the run has just ended."""

PACKAGES = "--packages"

MESSAGE_SIZE = 1 << 16

STACK_BYTES = 64 << 20
"""Recursion in C needs it; recursion in Python does not."""

OOM_SCORE = "1000"
"""The kernel kills runs first when memory runs out."""

INTERPRETER_SECONDS = 1
"""CPU seconds added to a run's limit, so that usually the wall clock ends it."""

ANSWERS = 3
"""The descriptor after the three standard ones."""

SPARE = 256
"""Descriptors from this number are free; a zygote has about a hundred."""

FILES = b"files"
"""Message of a child with a descriptor of its folder."""

NICE = -10
"""A zygote measures in time, however busy its run keeps the machine. Only root may have it."""

SCHED_RESET_ON_FORK = 0x40000000

NUM_SIGNALS = 256
"""Signals and timers that may wait for a user; the kernel keeps memory for each."""


def main(kind: str, parent: str, task: str, *paths: str) -> None:
    """Serve runs until the socket ends. `kind`: one of MAKERS. `parent`: the id of the process to
    die with. `task`: a Python file whose functions runs call, or nothing. `paths`: what runs may
    read: folders to import from and, after `PACKAGES`, what packages consist of."""
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.umask(0o022)
    sys.path.pop()  # hides the folder of this file from runs
    sys.argv = [""]
    site.setquit()  # defines `exit` and `quit`, which -S leaves out
    control = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    names = program.load_starter()
    with suppress(OSError):
        room.write("/proc/self/oom_score_adj", OOM_SCORE)
    try:
        at = paths.index(PACKAGES)
        source = _read_text(task) if task else ""
        maker = MAKERS[kind](paths[:at], paths[at + 1 :])
        program.load_task(source, maker.folders)
        perform = partial(program.perform, folders=maker.folders, names=names)
    except (OSError, ImportError) as error:
        control.send(json.dumps({"error": str(error)}).encode())
        return
    seccomp.compile_filter()
    gc.collect()
    gc.freeze()
    _hurry()
    maker.memory.begin()
    control.send(b"{}")
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, MESSAGE_SIZE, 8)
        if not message:
            return
        if message != STOP:
            # not kept in a variable: the next run has a copy of all that is kept here
            control.send(json.dumps(_run(maker, message, descriptors, control, perform)).encode())


def _read_text(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


def _hurry() -> None:
    """Come before the runs, which do not inherit it."""
    with suppress(OSError):
        os.nice(NICE)
        os.sched_setscheduler(0, os.SCHED_OTHER | SCHED_RESET_ON_FORK, os.sched_param(0))


class Room:
    """Isolates runs in namespaces; all processes of a run end with its first one."""

    def __init__(self, folders: Sequence[str], packages: Sequence[str]) -> None:
        self.memory = Memory(is_apart=True)  # before the root directory changes
        self._user = room.enter()
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)  # the change of user id cleared it
        if zygote := os.fork():
            os.closerange(3, 1 << 10)  # the socket ends with the zygote
            os.waitpid(zygote, 0)
            os._exit(1)
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        self._own = os.open("/proc/self/ns/pid", os.O_RDONLY)
        self._pipes = room.reserve_pipes(self._user) if self._user is not None else []
        self.folders = room.build_root(folders, packages)

    def fork(self) -> int:
        """Like os.fork, with the child as first process of a new namespace."""
        kernel.unshare(kernel.NEWPID)
        child = os.fork()
        if child:
            kernel.call("setns", self._own, kernel.NEWPID)
        return child

    def settle(self, files_mb: int) -> None:
        os.setsid()  # signals to a process group cross namespaces
        room.mount_own_tmp(files_mb)

    def drop_rights(self) -> None:
        kernel.forbid_capabilities()
        if self._user is not None:
            room.drop_root(self._user)
        kernel.drop_capabilities()
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)  # else a crash may start the core dump handler

    def clear(self) -> None:
        """Nothing to do: everything ended with the namespaces."""


class Bare:
    """Runs with limits only, for `unsafe_code`; kills leftover processes one by one."""

    def __init__(self, folders: Sequence[str], packages: Sequence[str]) -> None:
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
        self.memory = Memory(is_apart=False)
        self.folders = [*folders, *dict.fromkeys(map(os.path.dirname, packages))]
        self._folder = ""

    def fork(self) -> int:
        self._folder = tempfile.mkdtemp(prefix=f"sandbox-{os.getpid()}-", dir="/tmp")
        return os.fork()

    def settle(self, files_mb: int) -> None:
        os.setsid()
        os.chdir(self._folder)

    def drop_rights(self) -> None:
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)

    def clear(self) -> None:
        """Kill orphans, which become children of this process, generation by generation."""
        while children := _list_children():
            for child in children:
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
                    os.waitpid(child, 0)
        shutil.rmtree(self._folder, ignore_errors=True)


class Cell:
    """Isolates runs in a container, the first process of which is the zygote."""

    def __init__(self, folders: Sequence[str], packages: Sequence[str]) -> None:
        if os.getpid() != 1:  # `clear` ends all processes that it sees
            raise OSError("the zygote is not the first process of its container: without --init")
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
        self.memory = Memory(is_apart=True)
        # the limit on processes counts those of a user, in all containers
        self._user = room.USER_ID + int.from_bytes(os.urandom(2), "big") % room.NUM_USER_IDS
        self._pipes = room.reserve_pipes(self._user)
        self.folders = [*folders, *site.getsitepackages()]

    def fork(self) -> int:
        return os.fork()

    def settle(self, files_mb: int) -> None:
        os.setsid()
        os.chdir("/tmp")

    def drop_rights(self) -> None:
        room.drop_root(self._user)
        kernel.drop_capabilities()
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)

    def clear(self) -> None:
        """Kill every other process of the container, and delete the files of the run."""
        with suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        with suppress(ChildProcessError):
            while True:
                os.wait()
        with os.scandir("/tmp") as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry, ignore_errors=True)
                else:
                    os.unlink(entry)


Maker = Room | Bare | Cell

Perform = Callable[[bytes, int], int]
"""Executes a request, writes the answer to a descriptor, and returns the exit status."""

MAKERS: dict[str, type[Maker]] = {"isolated": Room, "bare": Bare, "container": Cell}
"""Namespaces of its own; none; those of a container."""


def _list_children() -> list[int]:
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return [int(each) for each in file.read().split()]


def _run(
    maker: Maker,
    message: bytes,
    descriptors: list[int],
    control: socket.socket,
    perform: Perform,
) -> dict[str, Any]:
    """Execute one run, wait for its last process, and report how it ended."""
    request, began = json.loads(message), time.monotonic()
    with _Start() as start:
        child = maker.fork()
        if not child:
            _execute(maker, request, [*descriptors, start.theirs.fileno()], perform)
        for each in descriptors:
            os.close(each)
        start.theirs.close()
        process = os.pidfd_open(child)
        try:
            stopped = _wait(maker.memory, request, process, control, start)
            if stopped:
                signal.pidfd_send_signal(process, signal.SIGKILL)
            _, status, used = os.wait4(child, 0)
        finally:
            os.close(process)
        start.receive()
        fault = start.fault
    maker.clear()
    return {
        "stopped": stopped,
        "fault": fault,
        "left": _has_left_sockets(maker.memory),
        "status": os.waitstatus_to_exitcode(status),
        "duration_s": time.monotonic() - began,
        "cpu_s": used.ru_utime + used.ru_stime,
    }


class _Start:
    """What a child tells before it executes the code: a descriptor of its files, or an error. It
    has a channel of its own, so that code cannot imitate a broken sandbox."""

    def __init__(self) -> None:
        self.files: int | None = None
        self.fault = ""

    def __enter__(self) -> Self:
        self._ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return self

    def receive(self) -> None:
        """Take what has been told so far."""
        with suppress(BlockingIOError):
            while True:
                message, files, _, _ = socket.recv_fds(self._ours, 1 << 10, 1, socket.MSG_DONTWAIT)
                if not message:
                    return
                if message == FILES:
                    (self.files,) = files
                else:
                    self.fault = message.decode()

    def __exit__(self, *_: object) -> None:
        self._ours.close()
        self.theirs.close()
        if self.files is not None:
            os.close(self.files)


def _wait(
    memory: Memory, request: dict[str, Any], process: int, control: socket.socket, start: _Start
) -> str:
    """Wait for the end of a run; return why it must be stopped, or an empty text."""
    until, most = time.monotonic() + request["time_s"], request["memory_mb"] << 20
    watched = select.poll()
    watched.register(process, select.POLLIN)
    watched.register(control, select.POLLIN)
    pause_s = WATCH_S
    while (left_s := until - time.monotonic()) > 0:
        ready = dict(watched.poll(1000 * min(pause_s, left_s)))
        if ready:
            return "" if process in ready else "told"
        began = time.monotonic()
        start.receive()
        if memory.measure(start.files) > most:
            return "memory"
        pause_s = max(WATCH_S, (time.monotonic() - began) / WATCH_SHARE)
    return "time"


def _has_left_sockets(memory: Memory) -> bool:
    """Whether sockets outlived all processes of a run, because they were sent through each other.
    Closing one has the kernel look for such sockets, some time later."""
    if not memory.count_sockets():
        return False
    for each in socket.socketpair():
        each.close()
    return True


def _execute(
    maker: Maker, request: dict[str, Any], descriptors: list[int], perform: Perform
) -> NoReturn:
    """Set up the child and execute the code. Errors before the code starts are reported through a
    socket, which is closed before the code runs, so the code cannot forge them."""
    status, start = 1, descriptors[-1]
    try:
        try:
            raw, start = _place_descriptors(descriptors)
            maker.settle(request["files_mb"])
            _send_files(start)
            _limit(request)
            maker.drop_rights()
            seccomp.install()
            gc.enable()
        except BaseException as error:
            os.write(start, repr(error).encode())
            raise
        os.close(start)
        status = perform(raw, ANSWERS)
    finally:
        _flush()
        os._exit(status)


def _send_files(start: int) -> None:
    files = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    with socket.socket(fileno=os.dup(start)) as channel:
        socket.send_fds(channel, [FILES], [files])
    os.close(files)


def _place_descriptors(descriptors: list[int]) -> tuple[bytes, int]:
    """Arrange the descriptors: 0 input, 1 output, 2 null device, 3 answer, 4 start; close all
    others. Return the program and the last one. Without one for the output, nobody reads it."""
    source, stdin, *stdout, answers, start = descriptors
    with open(source, "rb") as file:
        raw = file.read()
    nothing = os.open(os.devnull, os.O_WRONLY)
    for place, each in enumerate((stdin, *(stdout or [nothing]), nothing, answers, start)):
        os.dup2(each, SPARE + place)
    for place in range(ANSWERS + 2):
        os.dup2(SPARE + place, place)
    os.closerange(ANSWERS + 2, 1 << 10)
    return raw, ANSWERS + 1


def _limit(request: dict[str, Any]) -> None:
    cpu = request["cpu_s"] or int(request["time_s"]) + 1 + INTERPRETER_SECONDS
    size = request["memory_mb"] << 20
    for kind, most in (
        (resource.RLIMIT_CPU, cpu),
        (resource.RLIMIT_AS, size),
        (resource.RLIMIT_FSIZE, request["files_mb"] << 20),
        (resource.RLIMIT_NPROC, request["num_processes"]),
        (resource.RLIMIT_NOFILE, request["open_files"]),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NICE, 0),
        (resource.RLIMIT_RTPRIO, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_SIGPENDING, NUM_SIGNALS),
        (resource.RLIMIT_STACK, STACK_BYTES),
    ):
        hard = resource.getrlimit(kind)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (most, most))


def _flush() -> None:
    for stream in (sys.stdout, sys.__stdout__):
        if stream is not None:
            with suppress(BaseException):  # the code may have replaced it
                stream.flush()
