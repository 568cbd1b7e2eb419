"""The writer's lock of an output. It holds for the path and for the file, so that neither a moved
file nor a second name lets another collector in.

On a file system without `flock` the lock is a file that names its owner.
"""

import fcntl
import os
import socket
from contextlib import suppress
from errno import EINVAL, ENOLCK, ENOSYS, EOPNOTSUPP
from pathlib import Path

import orjson

from ..errors import OutputError
from ..types import JsonObject

WITHOUT_FLOCK = frozenset({EINVAL, ENOLCK, ENOSYS, EOPNOTSUPP})
"""Errors of a file system that knows no `flock`."""


class OutputLock:
    """Taken when it is made; OutputError if another collector has it."""

    def __init__(self, output: Path) -> None:
        self._output = output
        self._path = output.with_name(f".{output.name}.lock")
        self._covered: list[int] = []
        """Copies of descriptors: closing one of the originals must not end the lock."""
        try:
            while (found := self._take()) is None:
                pass
        except OSError as error:
            raise OutputError(
                f"cannot write {output}: {error.strerror}; choose another output_jsonl_fpath"
            ) from None
        self._descriptor = found

    def cover(self, descriptor: int) -> None:
        """Lock an open file of the output too; OutputError if another collector has it."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise self._refusal("") from None
        except OSError as error:
            if error.errno not in WITHOUT_FLOCK:
                raise
        self._covered.append(os.dup(descriptor))

    def release(self) -> None:
        """Remove the lock, unless the folder was moved and another collector has one there."""
        if is_still(self._path, self._descriptor):
            self._path.unlink(missing_ok=True)
        for descriptor in (self._descriptor, *self._covered):
            os.close(descriptor)
        self._covered.clear()

    def _take(self) -> int | None:
        """The lock file's descriptor; None if its last owner removed it meanwhile."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            owner = _owner(self._path)
            raise self._refusal(f" (pid {owner['pid']})" if owner else "") from None
        except OSError as error:
            os.close(descriptor)
            if error.errno not in WITHOUT_FLOCK:
                raise
            self._path.unlink(missing_ok=True)
            self._path = self._path.with_suffix(".owner")
            return self._take_by_name()
        if not is_still(self._path, descriptor):
            os.close(descriptor)
            return None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, _signature())
        return descriptor

    def _take_by_name(self) -> int:
        """The same without `flock`: the owner is the process that the file names."""
        owner = _owner(self._path)
        if owner is not None and not _runs(owner):
            self._path.unlink(missing_ok=True)
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            descriptor = os.open(self._path, flags, 0o644)
        except FileExistsError:
            who = f"pid {owner['pid']} on {owner['host']}; " if owner else ""
            raise self._refusal(f" ({who}if it has ended, remove {self._path})") from None
        os.write(descriptor, _signature())
        return descriptor

    def _refusal(self, who: str) -> OutputError:
        return OutputError(
            f"{self._output} is being written by another collector{who}: wait for it, or choose"
            " another output_jsonl_fpath"
        )


def is_still(path: Path, descriptor: int) -> bool:
    """Whether the path still names the file that was opened."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except OSError:
        return False


def _signature() -> bytes:
    pid = os.getpid()
    return orjson.dumps({"pid": pid, "host": socket.gethostname(), "began": _began(pid)})


def _owner(path: Path) -> JsonObject | None:
    with suppress(OSError, orjson.JSONDecodeError):
        found = orjson.loads(path.read_bytes())
        if isinstance(found, dict) and type(found.get("pid")) is int and "host" in found:
            return found
    return None


def _runs(owner: JsonObject) -> bool:
    """Whether the owner may still run; of another machine nothing is known."""
    if owner["host"] != socket.gethostname():
        return True
    try:
        os.kill(owner["pid"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return _began(owner["pid"]) == owner.get("began")


def _began(pid: int) -> str | None:
    """When a process began, in ticks: a later process may have the same id."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19]
    return None
