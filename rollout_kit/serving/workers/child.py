"""A worker process of `pool`, run by path; standard library only.

`python -P child.py FILE FUNCTION MAX_MEMORY_MB IS_CONFINED PARENT_PID`, with a socket as standard
input. It ends with its parent: by a death signal while it works, by end-of-file otherwise.

A request is `[CPU_S, ARGUMENTS]`. SIGPROF ends the process, even inside C code, when a call has
used CPU_S of CPU time in all its threads. Processes that the function starts do not count.
"""

import ctypes
import gc
import importlib.util
import json
import os
import resource
import signal
import socket
import sys
import warnings
from collections.abc import Callable
from typing import Any

HEADER_SIZE = 4
PR_SET_PDEATHSIG = 1
PR_SET_NO_NEW_PRIVS = 38


def main(file: str, function: str, max_memory_mb: str, is_confined: str, parent: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warnings.simplefilter("ignore", FutureWarning)  # about patterns of rows
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGPROF])
    die_with(int(parent))
    if int(is_confined):
        confine()
    if int(max_memory_mb):
        size = int(max_memory_mb) << 20
        resource.setrlimit(resource.RLIMIT_AS, (size, size))
    with socket.socket(fileno=os.dup(0)) as channel:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        try:
            work = load(file, function)
        except BaseException as error:
            send(channel, encode(failure(error)))
            return
        send(channel, encode({"result": None}))
        while (request := receive(channel)) is not None:
            cpu_s, arguments = json.loads(request)
            send(channel, answer_within(cpu_s, work, arguments))


def die_with(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before the signal was set
        os._exit(1)


def confine() -> None:
    """No program that this process starts can have more rights than it has."""
    if sys.platform == "linux":
        zeros = [ctypes.c_ulong(0)] * 3
        ctypes.CDLL(None).prctl(PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), *zeros)


def load(file: str, function: str) -> Callable[..., Any]:
    spec = importlib.util.spec_from_file_location("worker_task", file)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["worker_task"] = module
    gc.disable()  # what a file imports stays: looking for garbage in it takes a tenth of the time
    spec.loader.exec_module(module)
    gc.freeze()
    gc.enable()
    return getattr(module, function)


def answer_within(cpu_s: float, work: Callable[..., Any], arguments: list[Any]) -> bytes:
    """The encoded answer; the process ends if that takes more CPU time. 0 means no limit."""
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    try:
        return encode(answer(work, arguments))
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def answer(work: Callable[..., Any], arguments: list[Any]) -> dict[str, Any]:
    try:
        return {"result": work(*arguments)}
    except BaseException as error:  # some libraries derive their timeouts from BaseException
        return failure(error)


def failure(error: BaseException) -> dict[str, Any]:
    return {"error": {"type": type(error).__name__, "message": str(error)}}


def encode(message: dict[str, Any]) -> bytes:
    try:
        return json.dumps(message).encode()
    except (TypeError, ValueError) as error:
        return json.dumps(failure(error)).encode()


def send(channel: socket.socket, raw: bytes) -> None:
    channel.sendall(len(raw).to_bytes(HEADER_SIZE) + raw)


def receive(channel: socket.socket) -> bytes | None:
    """One message's bytes; None at the end of the channel."""
    header = read(channel, HEADER_SIZE)
    return read(channel, int.from_bytes(header)) if header is not None else None


def read(channel: socket.socket, size: int) -> bytes | None:
    parts = []
    while size:
        try:
            part = channel.recv(min(size, 1 << 20))
        except ConnectionError:
            return None
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


if __name__ == "__main__":
    main(*sys.argv[1:])
