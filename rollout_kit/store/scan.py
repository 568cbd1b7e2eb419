"""Reading the files of an output, line by line, without trusting any line."""

import os
from collections.abc import Hashable, Iterable, Iterator
from pathlib import Path

import orjson

from ..types import JsonObject
from .contents import Contents, LineHead, LinePlace, Refusal, head_of, head_reader
from .files import OutputPaths
from .lines import key_of, kind_of

AT_ONCE = 1 << 18
"""Bytes per read; large, so that few lines lie across two reads."""


def scan(paths: OutputPaths) -> Contents:
    """What the files of an output hold. Responses without a verdict and failures count wherever
    they stand, because files are concatenated; rollouts count in the main file."""
    found = Contents(size=paths.main.stat().st_size)
    read = head_reader() if found.size else None
    for offset, raw in read_lines(paths.main):
        if (head := read(raw) if read else None) is not None:
            _take_rollout(found, head, offset)
            continue
        row = parse_line(raw)
        kind = kind_of(row, "rollout") if row is not None else ""
        if row is not None and kind == "rollout" and (head := head_of(row)) is not None:
            _take_rollout(found, head, offset)
            continue
        found.idle.add(offset)
        if row is None or not _take_other(found, row, kind, LinePlace(paths.main, offset)):
            found.foreign += 1
    for path, default in ((paths.unverified, "unverified"), (paths.failures, "failure")):
        for offset, row in read_rows(path):
            if row is not None:
                _take_other(found, row, kind_of(row, default), LinePlace(path, offset))
    found.drop_done()
    return found


def _take_rollout(found: Contents, head: LineHead, offset: int) -> None:
    if not found.done.add(head.key):
        found.idle.add(offset)
        return
    found.keep_settings(head)
    if head.verifier:
        found.verifiers[head.key.agent, head.verifier] += 1


def _take_other(found: Contents, row: JsonObject, kind: str, place: LinePlace) -> bool:
    """Count a line that is no rollout; False if it is none of an output's either."""
    head = head_of(row)
    if kind == "unverified":
        if head is None or not isinstance(row.get("response"), dict):
            return False
        found.pending[head.key] = place
        if head.key not in found.done:
            found.keep_settings(head)
    elif kind == "failure":
        if head is None:
            return False
        if row["failure"].get("terminal") is True:
            found.refused.add(head.key)
            found.refusals.setdefault(head.key, []).append(Refusal.of(row))
    elif kind == "malformed" and isinstance(row.get("line"), int):
        found.malformed.add((str(row.get("input")), row["line"]))
    return kind != "rollout"


def read_rows(path: Path) -> Iterator[tuple[int, JsonObject | None]]:
    """(offset, row) of every line; None for a line that is not a JSON object."""
    return ((offset, parse_line(raw)) for offset, raw in read_lines(path))


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """(offset, line) of every line that is not blank."""
    try:
        with path.open("rb", AT_ONCE) as stream:
            yield from number_bytes(stream)
    except FileNotFoundError:
        return


def number_bytes(lines: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """(offset, line) of every line that is not blank."""
    offset = 0
    for raw in lines:
        if not raw.isspace():
            yield offset, raw
        offset += len(raw)


def parse_line(raw: bytes) -> JsonObject | None:
    try:
        row = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    return row if isinstance(row, dict) else None


def mark_of(raw: bytes) -> Hashable:
    """What a line is about: the key of a rollout or the place of a malformed line, else None."""
    row = parse_line(raw) or {}
    key = key_of(row)
    return (str(row.get("input")), str(row["line"])) if key is None and "line" in row else key


def last_line(descriptor: int, size: int) -> bytes:
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


def line_at(descriptor: int, offset: int) -> bytes:
    raw = b""
    while b"\n" not in raw:
        chunk = os.pread(descriptor, 1 << 16, offset + len(raw))
        if not chunk:
            return raw + b"\n"
        raw += chunk
    return raw[: raw.index(b"\n") + 1]
