"""Reading the files of an output, line by line, without trusting any line."""

import re
from array import array
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from ..errors import OutputError
from ..reading import line_number, open_file, parse_line, read_lines
from ..types import JsonObject, Key
from .compact import Keys
from .files import OutputPaths
from .index import BATCH, KeptIndex, Rows, WrongIndex
from .kinds import FOREIGN, NEWER, PRESENT, UNREADABLE, LineHead, kind_of, refuse_newer
from .nemo_gym import is_theirs
from .rollouts import RolloutFile, StoredLine, iterate_beside, refuse

HEAD = 1 << 16
"""Bytes at the start of a file that show its form."""

COMPRESSED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ")
"""First bytes of gzip, zstd, bzip2 and xz files."""


class LinePlace(NamedTuple):
    """Where a line stands."""

    path: Path
    offset: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """Fingerprints of what made a permanent failure; empty if its line does not say."""

    settings: str
    verifier: str
    is_answered: bool

    @classmethod
    def of(cls, row: JsonObject) -> "Refusal":
        block = row["rollout"]
        named = (str(block.get(name, "")) for name in ("settings", "verifier"))
        return cls(*named, is_answered="response" in row)


@dataclass(slots=True)
class Contents:
    """What the files held when they were opened."""

    done: Keys = field(default_factory=Keys)
    pending: dict[Key, LinePlace] = field(default_factory=dict)
    """Key that is not done → its last line without a verdict."""
    refused: set[Key] = field(default_factory=set)
    """Keys that failed permanently and are not tried again, as `keep_refused` decides."""
    refusals: dict[Key, list[Refusal]] = field(default_factory=dict)
    malformed: set[tuple[str, int]] = field(default_factory=set)
    """(input, line) of the malformed lines that the failures file already names."""
    settings: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    """(agent, scope) → fingerprints of the settings that its rollouts were generated with."""
    verifiers: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(agent, fingerprint of its verifier) → number of lines."""
    foreign: int = 0
    """Lines of the main file from other programs, or unreadable. They are left as they are."""
    size: int = 0
    """Bytes of the main file."""
    idle: set[int] = field(default_factory=set)
    """Offsets in the main file of lines that do not count: foreign ones, repeated keys, and those
    that are no rollouts."""
    checks: "array[int]" = field(default_factory=lambda: array("I"))
    """CRC-32 of the first lines that count: those that an index told, and that were not read. The
    metrics compare them after the first requests, to find an edit that keeps size and time."""

    def agents(self) -> list[str]:
        """Those of the rollouts, and of the responses that wait for a verdict."""
        names = {agent for agent, _ in self.done.numbers()}
        return sorted(names | {key.agent for key in self.pending})

    def take(self, head: LineHead) -> bool:
        """Count a rollout; False if its key is there already."""
        if not self.done.add(head.key):
            return False
        self.keep_settings(head)
        if head.verifier:
            self.verifiers[head.key.agent, head.verifier] += 1
        return True

    def take_many(
        self, kind: tuple[str, str, int], tasks: Collection[int], settings: str, verifier: str
    ) -> bool:
        """Count rollouts by (agent, scope, rollout index) and the numbers of their tasks' ids;
        False if a key is there already."""
        self.settings.setdefault(kind[:2], set()).add(settings)
        if verifier:
            self.verifiers[kind[0], verifier] += len(tasks)
        return self.done.add_numbers(kind, tasks)

    def keep_refused(self, present: Callable[[Key], tuple[str, str]]) -> None:
        """Keep the refusals that were made with the present settings and verifier, whose
        fingerprints `present` gives."""

        def stands(key: Key, refusal: Refusal) -> bool:
            settings, verifier = present(key)
            is_paid = refusal.is_answered and key not in self.pending
            return refusal.settings in ("", settings) and (
                refusal.verifier in ("", verifier) or is_paid
            )

        self.refused = {
            key
            for key, refusals in self.refusals.items()
            if any(stands(key, refusal) for refusal in refusals)
        }

    def drop_done(self) -> None:
        """Forget responses and refusals of keys that are done."""
        self.pending = {key: at for key, at in self.pending.items() if key not in self.done}
        self.refusals = {key: each for key, each in self.refusals.items() if key not in self.done}
        self.refused = set(self.refusals)

    def keep_settings(self, head: LineHead) -> None:
        which = head.key[1:3]
        if which not in self.settings:
            self.settings[which] = set()
        self.settings[which].add(head.settings)


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
        for line in iterate_beside(path, default):
            if line.kind == UNREADABLE:
                num_unreadable += not line.is_torn
            elif _take_other(found, line, path):
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
    for piece in RolloutFile(path).pieces(index):
        if isinstance(piece, Rows):
            lines.take_rows(piece)
        elif piece.offset < index.size:
            if lines.take(piece):
                found.checks.append(crc32(piece.raw))
        elif piece.is_torn:
            break  # to be repaired
        else:
            if not piece.raw.endswith(b"\n"):
                piece.raw += b"\n"  # as the repair does
            record = index.maker.record(piece.offset, piece.raw, piece.judged)
            counts = lines.take(piece)
            is_odd = not (counts and record and record.is_plain)
            is_kept = counts or (record is not None and record.kind != "rollout")
            index.keep(piece.offset, piece.raw, record if is_kept else None, is_odd=is_odd)
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

    def take(self, line: StoredLine) -> bool:
        """Count a line; True if it is a rollout that counts."""
        found, kind, head = self.found, line.kind, line.head
        if kind == "rollout" and head is not None:
            self.num_own += 1
            if found.take(head):
                return True
        elif kind != UNREADABLE and _take_other(found, line, self.path):
            self.num_own += 1
        else:
            found.foreign += 1
            self.num_unreadable += kind == UNREADABLE
        found.idle.add(line.offset)
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


def _take_other(found: Contents, line: StoredLine, path: Path) -> bool:
    """Count a line that is no rollout; False if it is none of an output's either. OutputError if a
    newer version wrote it."""
    kind, head = line.kind, line.head
    if kind == NEWER:
        raise refuse(path, line, is_output=True)
    if kind == "unverified" and head is not None:
        if not isinstance(line.row.get("response"), dict):
            return False
        found.pending[head.key] = LinePlace(path, line.offset)
        if head.key not in found.done:
            found.keep_settings(head)
    elif kind == "failure" and head is not None:
        row = line.row
        if not isinstance(row.get("failure"), dict):
            return False
        if row["failure"].get("terminal") is True:
            found.refused.add(head.key)
            found.refusals.setdefault(head.key, []).append(Refusal.of(row))
    elif kind == "malformed" and isinstance((row := line.row).get("line"), int):
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
            raise refuse_newer(path, line_number(path, offset), row, is_output=is_output)


def parse_newer(raw: bytes) -> JsonObject | None:
    """The line if a newer version wrote it."""
    if PRESENT.match(raw) or (row := parse_line(raw)) is None:
        return None
    return row if kind_of(row, "") == NEWER else None
