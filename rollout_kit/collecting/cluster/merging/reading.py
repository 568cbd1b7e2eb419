"""Which rollouts a source has: from its index where that is valid, else from its lines."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from ....store.files import OutputPaths
from ....store.index import OF_KEYS, WANTED, KeptIndex, Rows
from ....store.kinds import NEWER, LineHead
from ....store.rollouts import RolloutFile, StoredLine, refuse
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
    num_foreign = 0
    for piece in RolloutFile(paths.main).pieces(index):
        if isinstance(piece, Rows):
            for start in range(piece.start, piece.end, AT_A_TIME):
                yield piece._replace(start=start, end=min(piece.end, start + AT_A_TIME))
        elif (line := _found(paths.main, piece)) is not None:
            yield line
        elif piece.is_torn:
            size = len(piece.raw)
            found.torn.append(f"{paths.main}: its last line is cut off ({size:,} bytes)")
        else:
            num_foreign += 1
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


def _found(path: Path, line: StoredLine) -> FoundLine | None:
    """A line if it is a rollout."""
    if line.kind == NEWER:
        raise refuse(path, line, is_output=False)
    head = line.head
    if line.kind != "rollout" or head is None or not 0 <= head.key.rollout_index < NONE:
        return None
    return FoundLine(line.offset, len(line.raw), crc32(line.raw), head)
