"""Record calls to models and tools, or replay recorded ones instead of calling.

A call is identified by its rollout (task and index), server, path and body, and by the number of
equal calls that its session made before. A folder holds one file of JSON lines per kind of process.
If a call is recorded twice, the later recording counts.
"""

import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
import orjson

from ...errors import BatchPending, ConfigError, RolloutError, from_wire
from ...reading import MAX_STORED, check_kind, iterate_lines
from ...session import Session, current_session
from ...types import JsonObject
from .wire import canonical_request, encode

log = logging.getLogger(__name__)

Live = Callable[[str, bytes], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Tapes:
    """Folders to record into and to replay from. With both, calls that are not recorded are made
    and recorded. `models` are the servers whose every POST is recorded."""

    record: str | None = None
    replay: str | None = None
    models: Sequence[str] = ()

    @classmethod
    def at(cls, record: Path | None, replay: Path | None) -> "Tapes":
        """Tapes in these folders, by absolute paths, so that every process uses the same."""
        folders = [path and os.path.realpath(path.expanduser()) for path in (record, replay)]
        return cls(record=folders[0], replay=folders[1])

    @property
    def unused_models(self) -> Sequence[str]:
        """Models that receive no call."""
        return self.models if self.replay and not self.record else ()


class Cassette:
    """Open tapes. Raises ConfigError if there is nothing to replay or recording is impossible.

    `name` is part of the file name: processes of different kinds record into different files.
    """

    def __init__(self, tapes: Tapes, name: str = "") -> None:
        self.models = frozenset(tapes.models)
        self._replay = tapes.replay
        self._recorded: dict[str, Place] = {}
        self._tape = None if tapes.record is None else _open_to_append(Path(tapes.record), name)
        if tapes.replay is not None:
            self._recorded = _index(Path(tapes.replay), may_lack=tapes.record is not None)

    @classmethod
    def of(cls, tapes: Tapes, name: str = "") -> "Cassette | None":
        return cls(tapes, name) if tapes.record or tapes.replay else None

    async def send(self, server: str, path: str, raw: bytes, live: Live) -> Any:
        """Return the recorded reply to a call, or make the call and record its reply.

        Raises the recorded error of a call. Raises a RolloutError that is not retryable if the call
        is not recorded and recording is off.
        """
        session = current_session()
        rollout = session.rollout if session else None
        if session is None or rollout is None:  # a call outside of a rollout, such as a warm-up
            if self._tape is None:
                raise RolloutError(self._lack(path), server=server, retryable=False)
            return await live(path, raw)
        call = _Call(session, rollout, server, path, raw)
        if (place := self._recorded.get(call.key)) is not None:
            if server in self.models:
                session.spent.call(tokens=0, usd=0.0)
            descriptor, offset, size = place
            return _reply(orjson.loads(os.pread(descriptor, size, offset)), server)
        if self._tape is None:
            call.uncount()
            raise RolloutError(self._lack(path), server=server, retryable=False)
        try:
            reply = await live(path, raw)
        except BatchPending:  # the answer is still to come
            call.uncount()
            raise
        except BaseException as error:
            if isinstance(error, RolloutError) and not error.retryable:
                self._write(call.line(error.to_wire()))
            else:
                call.uncount()
            raise
        self._write(call.line(_to_record(reply)))
        return reply

    def _lack(self, path: str) -> str:
        return (
            f"this call of {path} is not among those recorded in {self._replay}; with +record=…"
            " too, what is missing is sent and recorded"
        )

    def _write(self, line: JsonObject) -> None:
        if self._tape is None:
            return
        raw = orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)
        try:
            os.write(self._tape, raw)
        except OSError as error:  # the rollout itself goes on
            log.warning("recording has stopped: %s", error.strerror)
            self._tape = os.open(os.devnull, os.O_WRONLY)


class _Call:
    """One call of a rollout, with its number among the equal calls of its session."""

    def __init__(
        self, session: Session, rollout: tuple[str, int], server: str, path: str, raw: bytes
    ) -> None:
        self.rollout, self.server, self.path = rollout, server, path
        self.request = orjson.loads(raw or b"{}")
        canonical = canonical_request(self.request)
        same = (*rollout, server, path)
        self._of_session = session.calls
        self._which = blake2b(f"{same}\n".encode() + canonical, digest_size=16).hexdigest()
        self.number = session.calls.get(self._which, 0)
        session.calls[self._which] = self.number + 1

    @property
    def key(self) -> str:
        return f"{self._which}-{self.number}"

    def uncount(self) -> None:
        """Take the call back: the repeated call will have the same number."""
        self._of_session[self._which] -= 1

    def line(self, outcome: JsonObject) -> JsonObject:
        task_id, index = self.rollout
        return {
            "key": self.key,
            "task_id": task_id,
            "rollout_index": index,
            "server": self.server,
            "path": self.path,
            "request": self.request,
            **outcome,
        }


def _to_record(reply: Any) -> JsonObject:
    """`reply` if it is a JSON object, else `text`."""
    raw = encode(reply)
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        value = None
    if not isinstance(value, dict) or orjson.dumps(value) != raw:
        return {"text": raw.decode("utf-8", "replace")}
    return {"reply": value}


def _reply(line: JsonObject, server: str) -> bytes:
    if (error := line.get("error")) is not None:
        raise from_wire(server, error.get("status", 500), line, "")
    return orjson.dumps(line["reply"]) if "reply" in line else line["text"].encode()


def _open_to_append(folder: Path, name: str) -> int:
    """Open the file to record into; end a torn last line."""
    path = folder / f"calls{name and f'-{name}'}.jsonl"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            os.write(descriptor, b"\n")  # a kill interrupted the last write
    except OSError as error:
        raise ConfigError(f"record={folder}: cannot write {path.name}: {error.strerror}") from None
    return descriptor


Place = tuple[int, int, int]
"""File descriptor, offset and length of a line."""


class _Keyed(msgspec.Struct):
    """The part of a line that the index needs."""

    key: str


def _index(folder: Path, *, may_lack: bool) -> dict[str, Place]:
    """Key → place of its recording. Torn lines are skipped."""
    found: dict[str, Place] = {}
    decode = msgspec.json.Decoder(_Keyed).decode
    try:
        paths = sorted(folder.glob("calls*.jsonl"), key=lambda path: path.stat().st_mtime)
        for path in paths:
            check_kind(path)
            descriptor, offset = os.open(path, os.O_RDONLY | os.O_CLOEXEC), 0
            with open(descriptor, "rb", closefd=False) as stream:
                for raw in iterate_lines(stream, MAX_STORED):
                    with suppress(msgspec.DecodeError):
                        found[decode(raw).key] = (descriptor, offset, len(raw))
                    offset += len(raw)
    except OSError as error:
        raise ConfigError(f"replay={folder}: cannot be read: {error.strerror}") from None
    if not found and not may_lack:
        raise ConfigError(
            f"replay={folder}: no recorded call is in there (calls*.jsonl, as record=… writes them)"
        )
    return found
