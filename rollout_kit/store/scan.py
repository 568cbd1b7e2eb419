"""Reading the files of an output, line by line, without trusting any line."""

import os
import re
from collections.abc import Hashable, Iterable, Iterator
from pathlib import Path

import orjson

from ..errors import OutputError
from ..types import JsonObject
from .contents import Contents, LineHead, LinePlace, Refusal, head_of, head_reader
from .files import OutputPaths
from .lines import key_of, kind_of

HEAD = 1 << 16
"""Bytes at the start of a file that show its form."""

COMPRESSED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ")
"""First bytes of gzip, zstd, bzip2 and xz files."""

AT_ONCE = 1 << 18
"""Bytes per read; large, so that few lines lie across two reads."""


def check_form(path: Path) -> None:
    """OutputError if the file was reformatted: its rollouts would not be found, and paid again."""
    with path.open("rb") as stream:
        head = stream.read(HEAD)
    line = head.partition(b"\n")[0].strip()
    if head[:2] in (b"\xff\xfe", b"\xfe\xff") or head[:2].strip(b"\0") != head[:2] != b"\0\0":
        form, remedy = "is in UTF-16 or UTF-32", "iconv -f UTF-16 -t UTF-8"
    elif head.startswith(b"\xef\xbb\xbf"):
        form, remedy = "begins with a byte order mark", "tail -c +4"
    elif head.startswith(COMPRESSED):
        form, remedy = "is compressed", "gunzip or zstd -d"
    elif line.startswith(b"["):
        form, remedy = "is a JSON array", "jq -c '.[]'"
    elif line == b"{" and b"\n" in head:
        form, remedy = "has objects of several lines", "jq -c ."
    elif re.search(rb"\r(?!\n|$)", line):
        form, remedy = "has lines that end with a carriage return only", "tr '\\r' '\\n'"
    else:
        return
    raise OutputError(
        f"{path} {form}, and not one JSON object per line. Nothing was sent. Convert it with "
        f" {remedy}  or choose another output_jsonl_fpath"
    )


def check_lines(path: Path, num_own: int, num_foreign: int, num_unreadable: int) -> None:
    """OutputError if most lines are not those of this output. One line may be damaged."""
    if num_unreadable > max(num_own, 1) or (num_foreign > 1 and not num_own):
        raise OutputError(
            f"{path}: {num_foreign:,} of its {num_own + num_foreign:,} lines are none that a"
            " collection wrote, or were reformatted. Nothing was sent. Restore the file, choose"
            " another output_jsonl_fpath, or give +resume=fresh to move it aside"
        )


def scan(paths: OutputPaths) -> Contents:
    """What the files of an output hold; OutputError if one was reformatted.

    Responses without a verdict and failures count wherever they stand, because files are
    concatenated. Rollouts count in the main file.
    """
    for path in (paths.main, paths.unverified, paths.failures):
        check_form(path)
    found = Contents(size=paths.main.stat().st_size)
    num_own = num_unreadable = 0
    read = head_reader() if found.size else None
    for offset, raw in read_lines(paths.main):
        if (head := read(raw) if read else None) is not None:
            _take_rollout(found, head, offset)
            num_own += 1
            continue
        row = parse_line(raw)
        if row is None and not raw.endswith(b"\n"):
            break  # a torn last line, to be repaired
        kind = kind_of(row, "rollout") if row is not None else ""
        if row is not None and kind == "rollout" and (head := head_of(row)) is not None:
            _take_rollout(found, head, offset)
            num_own += 1
            continue
        found.idle.add(offset)
        if row is None or not _take_other(found, row, kind, LinePlace(paths.main, offset)):
            found.foreign += 1
            num_unreadable += row is None
        else:
            num_own += 1
    check_lines(paths.main, num_own, found.foreign, num_unreadable)
    for path, default in ((paths.unverified, "unverified"), (paths.failures, "failure")):
        num_own = num_foreign = num_unreadable = 0
        for offset, raw in read_lines(path):
            row, place = parse_line(raw), LinePlace(path, offset)
            if row is None:
                num_unreadable += raw.endswith(b"\n")
            elif _take_other(found, row, kind_of(row, default), place):
                num_own += 1
            else:
                num_foreign += 1
        check_lines(path, num_own, num_foreign + num_unreadable, num_unreadable)
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


def read_object(path: Path) -> JsonObject:
    """The JSON object that a file is; empty if there is none."""
    try:
        return parse_line(path.read_bytes()) or {}
    except OSError:
        return {}


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
