"""A shell that is started before its command is known, because a shell takes longer to start than
most commands take. Standard library only.

The command is written into a file in memory that the shell has open, and a line in a pipe says
how many lines it has. Such files are not counted as the session's memory, so they cannot grow.
"""

import fcntl
import json
import os
from collections.abc import Callable, Sequence
from typing import Any

SHELL = "/bin/bash"

LOADER = (
    'read -r -u 3 || exit; [ . -ef "$PWD" ] || cd .; mapfile -n "$REPLY" -u 4;'
    ' printf -v REPLY %s "${MAPFILE[@]}"; exec 3<&- 4<&-; BASH_EXECUTION_STRING=$REPLY;'
    ' eval "unset -v REPLY MAPFILE; $REPLY"'
)
"""bash waits on descriptor 3, then runs what descriptor 4 holds, as `bash -c` would: error messages
name the same lines, and the command sees no variable and no descriptor of the loader. If the folder
was replaced meanwhile, bash enters the new one."""

LONGEST = 1 << 17
"""Bytes of a command."""


class CommandFile:
    """Where a shell gets its command: the descriptors `theirs` are its 3 and 4."""

    def __init__(self) -> None:
        self._file = _make_file("command", LONGEST)
        self._waiting, self._ready = os.pipe2(os.O_CLOEXEC)

    @property
    def theirs(self) -> list[int]:
        return [self._waiting, self._file]

    def give(self, command: str) -> None:
        """Hand over the command; OSError if no shell waits for it."""
        data, at = command.encode("utf-8", "surrogatepass") + b"\n", 0
        while at < len(data):
            at += os.pwrite(self._file, data[at:], at)  # the shell reads from its start
        os.write(self._ready, b"%d\n" % data.count(b"\n"))

    def leave(self) -> None:
        """Close our copy of the reading end, so that `give` fails once the shell has ended."""
        if self._waiting >= 0:
            os.close(self._waiting)
            self._waiting = -1

    def close(self) -> None:
        self.leave()
        os.close(self._file)
        os.close(self._ready)


class StartedShell:
    """A shell that waits for the command of a request that is `like` another: in the same folder,
    with the same environment, for the same user, and without an input. `start` starts it with
    descriptors, and returns its process. OSError if that fails."""

    def __init__(self, like: dict[str, Any], start: Callable[[Sequence[int]], int]) -> None:
        self._like = _signature(like)
        self._command = CommandFile()
        empty = _make_file("input", 0)
        pairs = [os.pipe2(os.O_CLOEXEC) for _ in range(2)]
        self.outputs = [source for source, _ in pairs]
        """What it prints, and its errors."""
        sinks = [sink for _, sink in pairs]
        try:
            self.child = start([empty, *sinks, *self._command.theirs])
        except OSError:
            self.close()
            raise
        finally:
            for each in (empty, *sinks):
                os.close(each)
        self._command.leave()

    def takes(self, request: dict[str, Any]) -> bool:
        return not request.get("has_input") and _signature(request) == self._like

    def give(self, command: str) -> None:
        """Hand over the command; OSError if the shell has ended."""
        self._command.give(command)

    def close(self) -> None:
        self._command.close()
        for each in self.outputs:
            os.close(each)


def _make_file(name: str, size: int) -> int:
    """A file in memory that keeps its size, whoever opens it."""
    file = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(file, size)
    fcntl.fcntl(
        file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    )
    return file


def _signature(request: dict[str, Any]) -> str:
    return json.dumps([request["cwd"], request.get("env", {}), str(request.get("user") or "")])
