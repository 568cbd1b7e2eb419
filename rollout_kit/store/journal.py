"""The rollouts file and its sidecars: append-only, one line per finished thing, one writer.

A line is written by one `write` to a file opened for append, so what is on disk is whole lines,
apart from a torn last one after a kill, which opening repairs. Nothing that was good is ever
rewritten.
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

from ..errors import OutputError
from ..types import JsonObject, Key, Rollout, Unverified
from .contents import Contents, Refusal
from .files import OutputPaths, write_atomically
from .lines import head_of, head_reader, key_of

Fsync = Literal["row", "second", "exit"]

AT_ONCE = 1 << 18
"""Bytes that are read at once: a line is cut by few of their borders."""


class Journal:
    """Open for one run. `notes` holds what opening had to repair, for people to read."""

    def __init__(
        self,
        paths: OutputPaths,
        *,
        fsync: Fsync = "second",
        on_row: Callable[[JsonObject], None] | None = None,
    ) -> None:
        self.paths = paths
        self.notes: list[str] = []
        self.writing_s = 0.0
        """Time that went into writing lines down, forcing each to disk included."""
        self._fsync: Fsync = fsync
        self._dirty: set[int] = set()
        self._files: dict[Path, int] = {}
        self._made: set[Path] = set()
        """Files that this run itself made: the only ones it may remove when they stay empty."""
        try:
            paths.main.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(
                f"cannot make the folder of {paths.main}: {error.strerror}; choose another"
                " output_jsonl_fpath"
            ) from None
        try:
            self._lock(paths.main)
            self._files[paths.unverified] = self._opened(paths.unverified)
            self._files[paths.failures] = self._opened(paths.failures)
            self.contents = self._scanned(on_row)
        except BaseException:
            self._close_files()
            raise
        self._parked: dict[Key, bytes] = {
            key: _digest(self.pending_line(key)["response"]) for key in self.contents.pending
        }
        """Key → digest of the response that is on disk and waits for its verdict."""

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
            os.close(descriptor)  # its last owner has just removed it, empty: begin anew
        self._files[path] = descriptor
        self._repair(path, descriptor)

    def _opened(self, path: Path) -> int:
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
            reason = "it is no regular file"
        except OSError as error:
            reason = error.strerror
        raise OutputError(f"cannot write {path}: {reason}; choose another output_jsonl_fpath")

    def _repair(self, path: Path, descriptor: int) -> None:
        """Complete a last line that only lacks its newline; cut one that is torn, keeping the
        bytes."""
        try:
            self._repaired(path, descriptor)
        except OSError as error:
            raise OutputError(f"cannot repair {path}: {error.strerror}; make room first") from None

    def _repaired(self, path: Path, descriptor: int) -> None:
        size = os.fstat(descriptor).st_size
        tail = _last_line(descriptor, size)
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

    def _scanned(self, on_row: Callable[[JsonObject], None] | None) -> Contents:
        found = Contents(size=os.fstat(self._files[self.paths.main]).st_size)
        read = head_reader() if found.size and not on_row else None
        for offset, raw in _lines(self.paths.main):
            row = None
            head = read(raw) if read else None
            if head is None and (row := _parsed(raw)) is not None:
                head = head_of(row)
            if head is None or not found.done.add(head.key):
                found.foreign += head is None
                found.idle.add(offset)
                continue
            found.keep_settings(head)
            if head.verifier:
                found.verifiers[head.key.agent, head.verifier] += 1
            if on_row and row is not None:
                on_row(row)
        for offset, row in _rows(self.paths.unverified):
            head = head_of(row) if row else None
            if not (row and head) or head.key in found.done:
                continue
            if isinstance(row.get("response"), dict):
                found.pending[head.key] = offset
                found.keep_settings(head)
        for _, row in _rows(self.paths.failures):
            if row is None:
                continue
            key, failure = key_of(row), row.get("failure")
            is_terminal = isinstance(failure, dict) and failure.get("terminal") is True
            if key is not None and is_terminal and key not in found.done:
                found.refused.add(key)
                found.refusals.setdefault(key, []).append(Refusal.of(row))
            elif isinstance(row.get("line"), int):
                found.malformed.add((str(row.get("input")), row["line"]))
        return found

    def earlier_rows(self) -> Iterator[JsonObject]:
        """The rollouts that were there when the files were opened, each key once."""
        for offset, row in _rows(self.paths.main):
            if offset >= self.contents.size:
                return
            if row is not None and offset not in self.contents.idle:
                yield row

    def pending_line(self, key: Key) -> JsonObject:
        """The stored response of a pending key, with its row."""
        descriptor, offset = self._files[self.paths.unverified], self.contents.pending[key]
        return orjson.loads(_line_at(descriptor, offset))

    def num_parked(self, wanted: Callable[[Key], bool]) -> int:
        """Responses on disk that wait for their verdict, of the keys that are `wanted`."""
        return sum(map(wanted, self._parked))

    def append(self, outcome: Rollout | Unverified) -> None:
        """Write a finished rollout, or a response whose verdict is out; a response only once.

        TypeError where the line is no JSON; nothing has been written then.
        """
        if isinstance(outcome, Rollout):
            self._write(self.paths.main, outcome.line)
            self._parked.pop(outcome.key, None)
            return
        response = _digest(outcome.line["response"])
        if self._parked.get(outcome.key) != response:
            self._write(self.paths.unverified, outcome.line)
            self._parked[outcome.key] = response

    def append_failure(self, line: JsonObject) -> None:
        self._write(self.paths.failures, line)

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
                f"cannot write {path}: {error.strerror}; what is there is whole: make room and run"
                " the same command again"
            ) from error
        if self._fsync == "row":
            os.fsync(descriptor)
        else:
            self._dirty.add(descriptor)
        self.writing_s += perf_counter() - began

    def sync(self) -> None:
        """Force what was written to disk; may block, so call it from a thread."""
        dirty, self._dirty = self._dirty, set()
        for descriptor in dirty:
            os.fsync(descriptor)

    def close(self, *, clean: bool) -> None:
        """Sync and let go; after a clean end the sidecars keep only what still stands."""
        try:
            self.sync()
            if clean:
                self._compact()
            self._drop_empty()
        finally:
            self._close_files()

    def _compact(self) -> None:
        """Rewrite the unverified file with just what is pending, atomically."""
        path = self.paths.unverified
        keep: dict[Key, bytes] = {}
        for offset, row in _rows(path):
            key = key_of(row) if row else None
            if key is not None and key in self._parked:
                keep[key] = _line_at(self._files[path], offset)
        if keep:
            write_atomically(path, b"".join(keep.values()))
        else:
            path.unlink(missing_ok=True)

    def _drop_empty(self) -> None:
        """A run that wrote nothing leaves nothing. The main file last: it is the lock."""
        for path in sorted(
            self._made & self._files.keys(), key=lambda path: path == self.paths.main
        ):
            if os.fstat(self._files[path]).st_size == 0:
                path.unlink(missing_ok=True)

    def _close_files(self) -> None:
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()


def _digest(response: JsonObject) -> bytes:
    return hashlib.blake2b(orjson.dumps(response), digest_size=8).digest()


def _is_still(path: Path, descriptor: int) -> bool:
    """Whether the name still leads to the file that was opened."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _rows(path: Path) -> Iterator[tuple[int, JsonObject | None]]:
    """(offset, row) of every line; None for a line that is no JSON object."""
    return ((offset, _parsed(raw)) for offset, raw in _lines(path))


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """(offset, line) of every line that is not blank."""
    offset = 0
    try:
        with path.open("rb", AT_ONCE) as stream:
            for raw in stream:
                if not raw.isspace():
                    yield offset, raw
                offset += len(raw)
    except FileNotFoundError:
        return


def _parsed(raw: bytes) -> JsonObject | None:
    try:
        row = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    return row if isinstance(row, dict) else None


def _last_line(descriptor: int, size: int) -> bytes:
    """The bytes after the last newline."""
    tail = b""
    block = 1 << 16
    while size - len(tail) > 0:
        start = max(0, size - len(tail) - block)
        chunk = os.pread(descriptor, size - len(tail) - start, start)
        newline = chunk.rfind(b"\n")
        if newline >= 0:
            return chunk[newline + 1 :] + tail
        tail = chunk + tail
    return tail


def _line_at(descriptor: int, offset: int) -> bytes:
    raw = b""
    while b"\n" not in raw:
        chunk = os.pread(descriptor, 1 << 16, offset + len(raw))
        if not chunk:
            return raw + b"\n"
        raw += chunk
    return raw[: raw.index(b"\n") + 1]


def _writer_pid(manifest: Path) -> str:
    try:
        return f" (pid {orjson.loads(manifest.read_bytes())['pid']})"
    except (OSError, KeyError, TypeError, orjson.JSONDecodeError):
        return ""
