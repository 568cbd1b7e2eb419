"""The batches of one model server on disk, so that a restarted server goes on with them.

`journal.jsonl` has a line for each step of a batch: `intent` before anything is sent, `submitted`
with the provider's id, `settled` once the results are in `<id>.results.jsonl`. A batch whose only
line is the intent may have been submitted; one without any line was not.
"""

import asyncio
import fcntl
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO

import orjson

from ...errors import ModelError
from ...reading import parse_line, read_lines, sync_folder
from ...types import JsonObject
from .provider import HEAD, UNANSWERED

NAME_DIGITS = 32


def name_in(line: bytes) -> bytes:
    """The name of the request that a line is about."""
    digits = line[len(HEAD) : len(HEAD) + NAME_DIGITS]
    return bytes.fromhex(digits.decode("ascii", "replace"))


@dataclass(slots=True, eq=False)
class StoredBatch:
    """One batch, with what the server that follows it knows. Until it is sealed, requests are
    appended to its file."""

    id: str
    folder: Path
    at: float = field(default_factory=time.time)
    """Unix time at which it was begun."""
    number: int = 0
    size: int = 0
    provider_id: str = ""
    is_dropped: bool = False
    """Whether it was not executed: its requests are asked for again."""
    is_cancelled: bool = False
    """Whether a person wants it to end."""
    is_ending: bool = False
    """Whether the provider was told to end it."""
    refusal: ModelError | None = None
    """Why the provider refused it as a whole."""
    done: int = 0
    first_at: float = 0.0
    last_at: float = 0.0
    """Times of the loop, of its requests."""
    is_full: asyncio.Event = field(default_factory=asyncio.Event)
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when nothing more will come of it."""
    _stream: BinaryIO | None = None
    _results: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    """Name → offset and size of its line."""
    _descriptor: int = -1

    @property
    def is_settled(self) -> bool:
        return self.settled.is_set()

    @property
    def requests(self) -> Path:
        return self.folder / f"{self.id}.requests.jsonl"

    @property
    def results(self) -> Path:
        return self.folder / f"{self.id}.results.jsonl"

    def append(self, line: bytes) -> None:
        if self._stream is None:
            self._stream = self.requests.open("wb")
        self._stream.write(line)
        self.number += 1
        self.size += len(line)

    def seal(self) -> None:
        """Force the requests to disk. It may block."""
        stream, self._stream = self._stream, None  # closed here, whatever happens meanwhile
        if stream is not None:
            stream.flush()
            os.fsync(stream.fileno())
            stream.close()
            sync_folder(self.requests)

    def names(self) -> Iterator[bytes]:
        """The names of its requests, from the file; once it is settled, from the results."""
        if self.is_settled:
            yield from self._results
            return
        for _, line in read_lines(self.requests):
            yield name_in(line)

    def load_results(self) -> None:
        for offset, line in read_lines(self.results):
            self._results[name_in(line)] = offset, len(line)

    def read(self, name: bytes) -> tuple[int, Any]:
        """Status and body of a result."""
        if (place := self._results.get(name)) is None:
            return UNANSWERED, None
        if self._descriptor < 0:
            self._descriptor = os.open(self.results, os.O_RDONLY | os.O_CLOEXEC)
        offset, size = place
        found = orjson.loads(os.pread(self._descriptor, size, offset))
        return found["status"], found.get("body")

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class ResultsWriter:
    """Writes the results of a batch; they are there as a whole or not at all."""

    def __init__(self, batch: StoredBatch, names: Iterable[bytes]) -> None:
        self._batch, self._missing = batch, set(names)
        self._draft = batch.results.with_suffix(".part")
        self._stream = self._draft.open("wb")

    def take(self, name: str, status: int, body: Any) -> None:
        """A result; one of a request that is none of this batch's, or a second one, is left
        out."""
        try:
            known = bytes.fromhex(name)
        except ValueError:
            return
        if known in self._missing:
            self._missing.discard(known)
            line: JsonObject = {"custom_id": name, "status": status, "body": body}
            self._stream.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))

    def end(self) -> None:
        """Keep what was taken. What is missing has no answer. It may block."""
        for name in self._missing:
            line = {"custom_id": name.hex(), "status": UNANSWERED}
            self._stream.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self._stream.close()
        self._draft.rename(self._batch.results)
        sync_folder(self._batch.results)

    def abandon(self) -> None:
        self._stream.close()


class BatchFolder:
    """Opens the folder, which one server at a time may have; ModelError if another one has it."""

    def __init__(self, path: Path, server: str) -> None:
        self.path = path
        self._writing, self._is_closed = Lock(), False
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise ModelError(
                f"{path} is in use: another server keeps its batches there. Give '{server}' another"
                " batch_dir, or end the other run",
                status=503,
            ) from None
        except OSError as error:
            raise ModelError(
                f"batches cannot be kept in {path}: {error.strerror}; give '{server}' another"
                " batch_dir",
                retryable=False,
            ) from None
        self._journal = path / "journal.jsonl"
        self._descriptor = os.open(
            self._journal, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644
        )
        self._end_last_line()
        sync_folder(self._journal)

    def _end_last_line(self) -> None:
        """A torn last line becomes a line of its own, which is none."""
        size = os.fstat(self._descriptor).st_size
        if size and os.pread(self._descriptor, 1, size - 1) != b"\n":
            os.write(self._descriptor, b"\n")

    def begin(self, id: str) -> StoredBatch:
        return StoredBatch(id, self.path)

    def note(self, batch: StoredBatch, event: str, **fields: Any) -> None:
        """Journal a step of a batch, and force it to disk. It may block."""
        line = {"batch": batch.id, "event": event, "at": time.time(), **fields}
        with self._writing:  # in a thread, while the server may be stopping
            if not self._is_closed:
                os.write(self._descriptor, orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
                os.fsync(self._descriptor)

    def load(self) -> list[StoredBatch]:
        """The batches that earlier servers have left, in the order in which they were sealed.
        Requests that were never to be submitted are removed."""
        found: dict[str, StoredBatch] = {}
        for _, raw in read_lines(self._journal):
            if (line := parse_line(raw)) is None or not isinstance(id := line.get("batch"), str):
                continue
            if (event := line.get("event")) == "intent":
                found[id] = StoredBatch(id, self.path, line["began"], line["requests"])
            elif event in ("dropped", "failed"):
                found.pop(id, None)
            elif (batch := found.get(id)) is None:
                continue
            elif event == "submitted":
                batch.provider_id = line["id"]
            elif event == "cancelled":
                batch.is_cancelled = True
            elif event == "settled":
                batch.settled.set()
        for path in [*self.path.glob("*.requests.jsonl"), *self.path.glob("*.part")]:
            batch = found.get(path.name.partition(".")[0])
            if batch is None or batch.is_settled or path.suffix == ".part":
                path.unlink(missing_ok=True)
        for batch in found.values():
            if batch.is_settled:
                batch.load_results()
        return list(found.values())

    def close(self) -> None:
        with self._writing:
            self._is_closed = True
            os.close(self._descriptor)
            os.close(self._lock)
