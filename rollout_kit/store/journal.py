"""The rollouts file and its sidecars: append-only, one line per outcome, one writer.

Each line is one `write` to a file opened for append, so a kill can tear only the last line, and
opening repairs it. A whole line is never rewritten.
"""

import fcntl
import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Literal

import orjson

from ..errors import OutputError, RolloutError
from ..types import Failure, JsonObject, Key, Outcome, Rollout, Unverified
from .contents import Contents
from .files import OutputPaths, write_atomically
from .lines import build_failure_line, build_malformed_line, failure_of, key_of
from .scan import last_line, line_at, read_rows, scan
from .tasks import Malformed

Fsync = Literal["row", "second", "exit"]


class Journal:
    """The files of an output, open for one run. `notes` says what opening had to repair.

    `command_line` is the command that a failure line repeats.
    """

    def __init__(
        self,
        paths: OutputPaths,
        *,
        fsync: Fsync = "second",
        command_line: str = "",
    ) -> None:
        self.paths = paths
        self.notes: list[str] = []
        self._command_line = command_line
        self.writing_s = 0.0
        """Time spent on writing lines, `fsync` per row included."""
        self._fsync: Fsync = fsync
        self._dirty: set[int] = set()
        self._files: dict[Path, int] = {}
        self._made: set[Path] = set()
        """Files that this run created; only these are removed if they stay empty."""
        try:
            paths.main.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(
                f"cannot make the folder of {paths.main}: {error.strerror}; choose another"
                " output_jsonl_fpath"
            ) from None
        try:
            self._lock(paths.main)
            self._files[paths.unverified] = self._open(paths.unverified)
            self._files[paths.failures] = self._open(paths.failures)
            self.contents = scan(paths)
        except BaseException:
            self._close_files()
            raise
        self._parked: dict[Key, bytes] = {
            key: _digest(self.pending_line(key)["response"]) for key in self.contents.pending
        }
        """Key → digest of its response that is on disk without a verdict."""

    def _lock(self, path: Path) -> None:
        while True:
            descriptor = self._open_append(path)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                raise OutputError(
                    f"{path} is being written by another collector"
                    f"{_writer_pid(self.paths.manifest)}: wait for it, or choose another"
                    " output_jsonl_fpath"
                ) from None
            if _is_still(path, descriptor):
                break
            os.close(descriptor)  # its last owner removed it just now: open it again
        self._files[path] = descriptor
        self._repair(path, descriptor)

    def _open(self, path: Path) -> int:
        descriptor = self._open_append(path)
        self._repair(path, descriptor)
        return descriptor

    def _open_append(self, path: Path) -> int:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        try:
            try:
                descriptor = os.open(path, flags | os.O_EXCL, 0o644)
                self._made.add(path)
            except FileExistsError:
                descriptor = os.open(path, flags, 0o644)
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                return descriptor
            os.close(descriptor)
            reason = "it is not a regular file"
        except OSError as error:
            reason = error.strerror
        raise OutputError(f"cannot write {path}: {reason}; choose another output_jsonl_fpath")

    def _repair(self, path: Path, descriptor: int) -> None:
        """Complete a last line that only lacks its newline; cut a torn one and keep its bytes."""
        try:
            self._repair_tail(path, descriptor)
        except OSError as error:
            raise OutputError(f"cannot repair {path}: {error.strerror}; make room first") from None

    def _repair_tail(self, path: Path, descriptor: int) -> None:
        size = os.fstat(descriptor).st_size
        tail = last_line(descriptor, size)
        if not tail:
            return
        try:
            whole = isinstance(orjson.loads(tail), dict)
        except orjson.JSONDecodeError:
            whole = False
        if whole:
            os.write(descriptor, b"\n")
            return
        with self.paths.torn.open("ab") as torn:
            torn.write(tail + b"\n")
            torn.flush()
            os.fsync(torn.fileno())
        os.ftruncate(descriptor, size - len(tail))
        self.notes.append(
            f"{path}: the last line was torn; its {len(tail):,} bytes are kept in {self.paths.torn}"
        )

    def earlier_rows(self) -> Iterator[JsonObject]:
        """The rollouts that the main file held when it was opened, each key once."""
        for offset, row in read_rows(self.paths.main):
            if offset >= self.contents.size:
                return
            if row is not None and offset not in self.contents.idle:
                yield row

    def pending_line(self, key: Key) -> JsonObject:
        """The line of a response that waits for its verdict."""
        descriptor, offset = self._files[self.paths.unverified], self.contents.pending[key]
        return orjson.loads(line_at(descriptor, offset))

    def num_parked(self, wanted: Callable[[Key], bool]) -> int:
        """Responses on disk that wait for their verdict, of the keys that are `wanted`."""
        return sum(map(wanted, self._parked))

    def append(self, outcome: Outcome) -> Outcome:
        """Write an outcome, and return it.

        A response without a verdict is written once; with an error it is named in the failures
        file as well. An outcome that is not JSON becomes a Failure, which is written and returned.
        """
        try:
            match outcome:
                case Rollout(line=line):
                    self._write(self.paths.main, line)
                    self._parked.pop(outcome.key, None)
                case Unverified(error=error):
                    self._park(outcome)
                    if error is not None:
                        self._write_failure(failure_of(outcome, error))
                case Failure():
                    self._write_failure(outcome)
        except TypeError as error:
            message = f"the rollout cannot be written as JSON: {error}"
            broken = RolloutError(message, server=outcome.key.agent, retryable=False)
            outcome = Failure(outcome.key, 0, broken, [{"message": message}])
            self._write_failure(outcome)
        return outcome

    def append_malformed(self, malformed: Malformed, source: str) -> bool:
        """Name a malformed line of the input `source`; False if an earlier run has named it."""
        if (source, malformed.line) in self.contents.malformed:
            return False
        self._write(self.paths.failures, build_malformed_line(malformed, source))
        return True

    def _park(self, unverified: Unverified) -> None:
        response = _digest(unverified.line["response"])
        if self._parked.get(unverified.key) != response:
            self._write(self.paths.unverified, unverified.line)
            self._parked[unverified.key] = response

    def _write_failure(self, failure: Failure) -> None:
        key = failure.key
        only = f"only={key.task_id}:{key.rollout_index}"
        repro = f"{self._command_line} +{only}" if self._command_line else only
        self._write(self.paths.failures, build_failure_line(failure, repro))

    def _write(self, path: Path, line: JsonObject) -> None:
        descriptor, began = self._files[path], perf_counter()
        raw = orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)
        try:
            written = os.write(descriptor, raw)
            if written != len(raw):
                os.ftruncate(descriptor, os.fstat(descriptor).st_size - written)
                raise OSError(0, "no room for the whole line")
        except OSError as error:
            raise OutputError(
                f"cannot write {path}: {error.strerror}; every line in it is whole: make room and"
                " run the same command again"
            ) from error
        if self._fsync == "row":
            os.fsync(descriptor)
        else:
            self._dirty.add(descriptor)
        self.writing_s += perf_counter() - began

    def sync(self) -> None:
        """Force written lines to disk. It may block, so call it in a thread."""
        dirty, self._dirty = self._dirty, set()
        for descriptor in dirty:
            os.fsync(descriptor)

    def close(self, *, clean: bool) -> None:
        """Force lines to disk and close; after a clean end, drop responses that have a verdict."""
        try:
            self.sync()
            if clean:
                self._compact()
            self._drop_empty()
        finally:
            self._close_files()

    def _compact(self) -> None:
        """Rewrite the unverified file, atomically, with the pending responses only."""
        path = self.paths.unverified
        keep: dict[Key, bytes] = {}
        for offset, row in read_rows(path):
            key = key_of(row) if row else None
            if key is not None and key in self._parked:
                keep[key] = line_at(self._files[path], offset)
        if keep:
            write_atomically(path, b"".join(keep.values()))
        else:
            path.unlink(missing_ok=True)

    def _drop_empty(self) -> None:
        """Remove the empty files that this run created; the main file last, as it is the lock."""
        for path in sorted(
            self._made & self._files.keys(), key=lambda path: path == self.paths.main
        ):
            if os.fstat(self._files[path]).st_size == 0:
                path.unlink(missing_ok=True)

    def _close_files(self) -> None:
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()


class NoJournal:
    """A sink that keeps nothing on disk: for a run without an output."""

    def __init__(self) -> None:
        self.contents = Contents()
        self.notes: list[str] = []
        self.writing_s = 0.0

    def append(self, outcome: Outcome) -> Outcome:
        return outcome

    def append_malformed(self, malformed: Malformed, source: str) -> bool:
        return True

    def earlier_rows(self) -> Iterator[JsonObject]:
        return iter(())

    def pending_line(self, key: Key) -> JsonObject:
        raise KeyError(key)

    def num_parked(self, wanted: Callable[[Key], bool]) -> int:
        return 0

    def sync(self) -> None:
        return

    def close(self, *, clean: bool) -> None:
        return


def _digest(response: JsonObject) -> bytes:
    return hashlib.blake2b(orjson.dumps(response), digest_size=8).digest()


def _is_still(path: Path, descriptor: int) -> bool:
    """Whether the path still names the file that was opened."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _writer_pid(manifest: Path) -> str:
    try:
        return f" (pid {orjson.loads(manifest.read_bytes())['pid']})"
    except (OSError, KeyError, TypeError, orjson.JSONDecodeError):
        return ""
