"""Reading the files of an output, line by line, without trusting any line."""

import os
from collections.abc import Hashable, Iterable, Iterator
from pathlib import Path

import orjson

from ..types import JsonObject
from .contents import Contents, Refusal, head_of, head_reader
from .files import OutputPaths
from .lines import key_of

AT_ONCE = 1 << 18
"""Bytes per read; large, so that few lines lie across two reads."""


def scan(paths: OutputPaths) -> Contents:
    """What the files of an output hold."""
    found = Contents(size=paths.main.stat().st_size)
    read = head_reader() if found.size else None
    for offset, raw in read_lines(paths.main):
        row = None
        head = read(raw) if read else None
        if head is None and (row := parse_line(raw)) is not None:
            head = head_of(row)
        if head is None or not found.done.add(head.key):
            found.foreign += head is None
            found.idle.add(offset)
            continue
        found.keep_settings(head)
        if head.verifier:
            found.verifiers[head.key.agent, head.verifier] += 1
    for offset, row in read_rows(paths.unverified):
        head = head_of(row) if row else None
        if not (row and head) or head.key in found.done:
            continue
        if isinstance(row.get("response"), dict):
            found.pending[head.key] = offset
            found.keep_settings(head)
    for _, row in read_rows(paths.failures):
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
