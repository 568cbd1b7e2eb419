"""Which rollouts a source has: from its index where that is valid, else from its lines."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from ....reading import open_file
from ....store.files import OutputPaths
from ....store.index import OF_KEYS, WANTED, KeptIndex, Rows
from ....store.lines import (
    NEWER,
    LineHead,
    LinePlace,
    head_reader,
    kind_of,
    parse_head,
    refuse_newer,
)
from ....store.scan import AT_ONCE, indexed_line, line_number, number_bytes, parse_line
from ....types import Key
from .findings import Findings

NONE = 2**32 - 1
"""The largest number in the arrays of a merge, and no place in them; rollout indexes are lower."""

AT_A_TIME = 8192
"""Rows of an index that are taken together."""


class FoundLine(NamedTuple):
    """The line of a rollout. `check` is its CRC-32."""

    offset: int
    size: int
    check: int
    head: LineHead


def read_source(
    paths: OutputPaths, found: Findings, *, trusts_index: bool = True
) -> Iterator[FoundLine | Rows]:
    """The rollouts of a file in its order, repeated keys too; those that its index tells come as
    rows. Other lines are named in `found`. WrongIndex if the index cannot be that of the file;
    OutputError if a newer version wrote a line."""
    index = KeptIndex(paths.index if trusts_index else None, WANTED | {"length"})
    read_head, num_foreign = head_reader(), 0
    with open_file(paths.main, AT_ONCE) as stream:
        index.descriptor = stream.fileno()
        for piece in index.load():
            if isinstance(piece, Rows):
                for start in range(piece.start, piece.end, AT_A_TIME):
                    yield piece._replace(start=start, end=min(piece.end, start + AT_A_TIME))
                continue
            raw = indexed_line(index.descriptor, piece)
            if (line := _read_line(paths.main, piece, raw, read_head(raw))) is None:
                num_foreign += 1
            else:
                yield line
        stream.seek(index.size)
        for offset, raw in number_bytes(stream, index.size):
            if (line := _read_line(paths.main, offset, raw, read_head(raw))) is not None:
                yield line
            elif raw.endswith(b"\n") or parse_line(raw) is not None:
                num_foreign += 1
            else:
                found.torn.append(f"{paths.main}: its last line is cut off ({len(raw):,} bytes)")
    found.name_foreign(paths.main, num_foreign)


def split_rows(rows: Rows) -> Iterator[FoundLine]:
    """Rows one by one."""
    columns, part = rows.columns, slice(rows.start, rows.end)
    names = [columns.texts[each].names for each in OF_KEYS]
    codes = [columns.texts[each].codes[part] for each in OF_KEYS]
    indexes = columns.numbers["rollout_index"][part]
    places = columns.offsets[part], columns.lengths[part], columns.checks[part]
    for offset, size, check, task, index, *held in zip(
        *places, columns.tasks[part], indexes, *codes, strict=True
    ):
        texts = (texts[code] or "" for texts, code in zip(names, held, strict=True))
        agent, scope, settings, verifier = texts
        key = Key(f"{task:016x}", agent, scope, int(index))
        yield FoundLine(offset, size, check, LineHead(key, settings, verifier))


def _read_line(path: Path, offset: int, raw: bytes, head: LineHead | None) -> FoundLine | None:
    """The line if it is a rollout; `head` is what a quick look at it gave."""
    if head is None and (line := parse_line(raw)) is not None:
        if (kind := kind_of(line, "rollout")) == NEWER:
            number = line_number(LinePlace(path, offset))
            raise refuse_newer(path, number, line, is_output=False)
        head = parse_head(line) if kind == "rollout" else None
    if head is None or not 0 <= head.key.rollout_index < NONE:
        return None
    return FoundLine(offset, len(raw), crc32(raw), head)
