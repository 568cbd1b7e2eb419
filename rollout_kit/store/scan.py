"""Reading the files of an output, line by line, without trusting any line."""

import os
import re
from codecs import BOM_UTF8
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import orjson

from ..errors import OutputError, RolloutError
from ..reading import MAX_STORED, Lines, iterate_lines, open_file
from ..types import Failure, JsonObject, Outcome
from .files import OutputPaths
from .index import BATCH, KeptIndex, Record, Rows, WrongIndex
from .lines import (
    FOREIGN,
    NEWER,
    PRESENT,
    Contents,
    LineHead,
    LinePlace,
    Refusal,
    key_of,
    kind_of,
    parse_head,
    refuse_newer,
)
from .nemo_gym import is_theirs

HEAD = 1 << 16
"""Bytes at the start of a file that show its form."""

COMPRESSED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ")
"""First bytes of gzip, zstd, bzip2 and xz files."""

AT_ONCE = 1 << 18
"""Bytes per read; large, so that few lines lie across two reads."""


def check_form(path: Path, *, takes_mark: bool = False) -> None:
    """OutputError if the file was reformatted: its rollouts would not be found, and paid again.
    `takes_mark`: a byte order mark does no harm, as nothing is appended."""
    with open_file(path) as stream:
        head = stream.read(HEAD)
    head = head.removeprefix(BOM_UTF8) if takes_mark else head
    line = head.partition(b"\n")[0].strip()
    if head[:2] in (b"\xff\xfe", b"\xfe\xff") or head[:2].strip(b"\0") != head[:2] != b"\0\0":
        form, remedy = "is in UTF-16 or UTF-32", "iconv -f UTF-16 -t UTF-8"
    elif head.startswith(BOM_UTF8):
        form, remedy = "begins with a byte order mark", "tail -c +4"
    elif head.startswith(COMPRESSED):
        form, remedy = "is compressed", "gunzip or zstd -d"
    elif line.startswith(b"["):
        form, remedy = "is a JSON array", "jq -c '.[]'"
    elif line == b"{" and b"\n" in head:
        form, remedy = "has objects of several lines", "jq -c ."
    elif re.search(rb"\r(?!\n|$)", line):
        form, remedy = "has lines that end with a carriage return only", "tr '\\r' '\\n'"
    elif is_theirs(path):
        raise OutputError(
            f"{path} has rollouts of NeMo Gym. Nothing was sent. Choose another output_jsonl_fpath;"
            " ng_view, ng_compare, ng_export and ng_reverify read the file as it is"
        )
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
            f"{path}: {num_foreign:,} of its {num_own + num_foreign:,} lines were not"
            " written by a collection, or were reformatted. Nothing was sent. Restore the file,"
            " choose another output_jsonl_fpath, or give +resume=fresh to move it aside"
        )


def scan(paths: OutputPaths, index: KeptIndex | None = None) -> Contents:
    """What the files of an output hold; OutputError if one was reformatted, or a newer version
    wrote a line of the output.

    Responses without a verdict and failures count wherever they stand, because files are
    concatenated. Rollouts count in the main file. What the `index` covers is not read again.
    """
    for path in (paths.main, paths.unverified, paths.failures):
        check_form(path)
    check_beside(paths)
    index = index or KeptIndex(None)
    try:
        found = _read_main(paths.main, index)
    except WrongIndex:
        index.reset()
        found = _read_main(paths.main, index)
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


def _read_main(path: Path, index: KeptIndex) -> Contents:
    """What the main file holds. The lines behind those of the index are read, and told to it."""
    found = Contents(size=path.stat().st_size)
    lines = _MainLines(path, found)
    with open_file(path, AT_ONCE) as stream:
        index.descriptor = descriptor = stream.fileno()
        for piece in index.load():
            if isinstance(piece, Rows):
                lines.take_rows(piece)
            elif lines.take(piece, raw := indexed_line(descriptor, piece)):
                found.checks.append(crc32(raw))
        stream.seek(index.size)
        for offset, raw in number_bytes(stream, index.size):
            if not raw.endswith(b"\n"):
                if parse_line(raw) is None:
                    break  # a torn last line, to be repaired
                raw += b"\n"  # as the repair does
            record = index.make(offset, raw)
            counts = lines.take(offset, raw, record)
            is_odd = not (counts and record and record.is_plain)
            is_kept = counts or (record is not None and record.kind != "rollout")
            index.keep(offset, raw, record if is_kept else None, is_odd=is_odd)
            if index.num_waiting >= BATCH:
                index.flush()
    check_lines(path, lines.num_own, found.foreign, lines.num_unreadable)
    return found


@dataclass(slots=True)
class _MainLines:
    """Counts the lines of the main file into `found`."""

    path: Path
    found: Contents
    num_own: int = 0
    num_unreadable: int = 0

    def take(self, offset: int, raw: bytes, record: Record | None = None) -> bool:
        """Count a line, by its record if that is plain; True if it is a rollout that counts."""
        found = self.found
        if record is not None and record.is_plain:
            head: LineHead | None = LineHead(record.key, record.settings, record.verifier)
            kind = "rollout"
            row: JsonObject | None = {}
        else:
            row = parse_line(raw)
            kind = kind_of(row, "rollout") if row is not None else ""
            head = parse_head(row) if row is not None and kind == "rollout" else None
        if head is not None:
            self.num_own += 1
            if found.take(head):
                return True
        elif row is not None and _take_other(found, row, kind, LinePlace(self.path, offset)):
            self.num_own += 1
        else:
            found.foreign += 1
            self.num_unreadable += row is None
        found.idle.add(offset)
        return False

    def take_rows(self, rows: Rows) -> None:
        """Count rollouts that an index tells; WrongIndex if a key is in it twice."""
        columns, part, found = rows.columns, slice(rows.start, rows.end), self.found
        texts = [columns.texts[name] for name in ("agent", "scope", "settings", "verifier")]
        tasks_of: dict[Any, list[int]] = {}
        codes = (*(text.codes[part] for text in texts), columns.numbers["rollout_index"][part])
        for task, kind in zip(columns.tasks[part], zip(*codes, strict=True), strict=True):
            if kind in tasks_of:
                tasks_of[kind].append(task)
            else:
                tasks_of[kind] = [task]
        for (*names, index), tasks in tasks_of.items():
            agent, scope, settings, verifier = (
                text.names[code] or "" for text, code in zip(texts, names, strict=True)
            )
            if not found.take_many((agent, scope, int(index)), tasks, settings, verifier):
                raise WrongIndex
        found.checks.extend(columns.checks[part])
        self.num_own += rows.end - rows.start


def indexed_line(descriptor: int, offset: int) -> bytes:
    """The line that begins at an offset; WrongIndex if none does."""
    if offset and os.pread(descriptor, 1, offset - 1) != b"\n":
        raise WrongIndex
    return line_at(descriptor, offset)


def _take_other(found: Contents, row: JsonObject, kind: str, place: LinePlace) -> bool:
    """Count a line that is no rollout; False if it is none of an output's either. OutputError if a
    newer version wrote it."""
    if kind == NEWER:
        raise refuse_newer(place.path, line_number(place), row)
    head = parse_head(row)
    if kind == "unverified":
        if head is None or not isinstance(row.get("response"), dict):
            return False
        found.pending[head.key] = place
        if head.key not in found.done:
            found.keep_settings(head)
    elif kind == "failure":
        if head is None or not isinstance(row.get("failure"), dict):
            return False
        if row["failure"].get("terminal") is True:
            found.refused.add(head.key)
            found.refusals.setdefault(head.key, []).append(Refusal.of(row))
    elif kind == "malformed" and isinstance(row.get("line"), int):
        found.malformed.add((str(row.get("input")), row["line"]))
    return kind not in ("rollout", FOREIGN)


def check_beside(paths: OutputPaths) -> None:
    """OutputError if a newer version wrote a line beside the main file, apart from responses
    without a verdict and failures."""
    for path in (paths.turns, paths.groups, paths.acks):
        check_schema(path)


def check_schema(path: Path, *, is_output: bool = True) -> None:
    """OutputError if a newer version wrote a line of the file. Lines as this version writes them
    are not parsed."""
    for offset, raw in read_lines(path):
        if (row := parse_newer(raw)) is not None:
            number = line_number(LinePlace(path, offset))
            raise refuse_newer(path, number, row, is_output=is_output)


def parse_newer(raw: bytes) -> JsonObject | None:
    """The line if a newer version wrote it."""
    if PRESENT.match(raw) or (row := parse_line(raw)) is None:
        return None
    return row if kind_of(row, "") == NEWER else None


def line_number(place: LinePlace) -> int:
    """The number of a line, from 1."""
    number, left = 1, place.offset
    with place.path.open("rb") as stream:
        while piece := stream.read(min(left, AT_ONCE)):
            number, left = number + piece.count(b"\n"), left - len(piece)
    return number


def read_rows(path: Path) -> Iterator[tuple[int, JsonObject | None]]:
    """(offset, row) of every line; None for a line that is not a JSON object."""
    return ((offset, parse_line(raw)) for offset, raw in read_lines(path))


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """(offset, line) of every line that is not blank."""
    try:
        with open_file(path, AT_ONCE) as stream:
            yield from number_bytes(stream)
    except FileNotFoundError:
        return


def number_bytes(stream: Lines, offset: int = 0) -> Iterator[tuple[int, bytes]]:
    """(offset, line) of every line that is not blank; `offset` is that of the first. A byte order
    mark at the start of a file belongs to no line."""
    for raw in iterate_lines(stream, MAX_STORED):
        if offset == 0 and raw.startswith(BOM_UTF8):
            offset, raw = len(BOM_UTF8), raw.removeprefix(BOM_UTF8)
        if raw and not raw.isspace():
            yield offset, raw
        offset += len(raw)


def dump_line(line: JsonObject) -> bytes:
    """The line as it is written; TypeError if it is not JSON."""
    return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)


def refuse_line(outcome: Outcome, error: TypeError) -> Failure:
    """What is recorded instead of an outcome that is not JSON."""
    message = f"the rollout cannot be written as JSON: {error}"
    broken = RolloutError(message, server=outcome.key.agent, retryable=False)
    return Failure(outcome.key, 0, broken, [{"message": message}])


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
