"""A worker process of `pool`, run by path; standard library only.

`python -P child.py FILE FUNCTION MAX_MEMORY_MB PARENT_PID`, with a socket as standard input.
It ends with its parent: by a death signal while it works, by end-of-file otherwise.
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
from collections.abc import Callable
from typing import Any

HEADER_SIZE = 4
PR_SET_PDEATHSIG = 1


def main(file: str, function: str, max_memory_mb: str, parent: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with(int(parent))
    if int(max_memory_mb):
        size = int(max_memory_mb) << 20
        resource.setrlimit(resource.RLIMIT_AS, (size, size))
    with socket.socket(fileno=os.dup(0)) as channel:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        try:
            work = load(file, function)
        except BaseException as error:
            send(channel, failure(error))
            return
        send(channel, {"result": None})
        while (request := receive(channel)) is not None:
            send(channel, answer(work, json.loads(request)))


def die_with(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before the signal was set
        os._exit(1)


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


def answer(work: Callable[..., Any], arguments: list[Any]) -> dict[str, Any]:
    try:
        return {"result": work(*arguments)}
    except BaseException as error:  # some libraries derive their timeouts from BaseException
        return failure(error)


def failure(error: BaseException) -> dict[str, Any]:
    return {"error": {"type": type(error).__name__, "message": str(error)}}


def send(channel: socket.socket, message: dict[str, Any]) -> None:
    try:
        raw = json.dumps(message).encode()
    except (TypeError, ValueError) as error:
        raw = json.dumps(failure(error)).encode()
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
