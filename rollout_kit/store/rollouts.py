"""Stored rollouts: the one reader of files of rollouts.

`judge_lines` says what each line of a stream is. `RolloutFile` gives the rollouts of a file, each
key once, with the scores of their groups and what people have labelled them with.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import islice
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, OutputError, how_to_install
from ..reading import (
    AT_ONCE,
    MAX_STORED,
    Lines,
    line_at,
    line_number,
    number_bytes,
    open_file,
    parse_line,
)
from ..types import GroupScore, JsonObject, Key, Rollout
from .columns import LEFT_OUT
from .compact import Keys
from .files import OutputPaths
from .filters.expression import Filter, fields_of, filtering, names_in, read_field
from .filters.masks import mask_of, split, value_in
from .groups.rewards import GroupRewards, join
from .index import KeptIndex, LineChanged, Rows, WrongIndex, open_index
from .input import place_lines, plain_path
from .kinds import (
    NEWER,
    OF_KEY,
    REPEATED,
    UNREADABLE,
    HeadReader,
    Judged,
    LineHead,
    judge_parsed,
    refuse_newer,
    why_left_out,
)
from .lines import rollout_of
from .notes.labels import find_labels
from .notes.scans import find_scans

if TYPE_CHECKING:
    from pandas import DataFrame  # type: ignore[import-not-found]


@dataclass(slots=True)
class StoredLine:
    """A line and what it is, as `Judged` says. `number` is that of the line in its file, from 1; it
    is 0 where reading began behind the first line."""

    number: int
    offset: int
    raw: bytes
    judged: Judged
    _row: JsonObject | None = None

    @property
    def kind(self) -> str:
        return self.judged.kind

    @property
    def head(self) -> LineHead | None:
        """Of every rollout, response without a verdict and failure."""
        return self.judged.head

    @property
    def row(self) -> JsonObject:
        """The JSON object, parsed once; empty if the line is none."""
        if self._row is None:
            self._row = self.judged.row or parse_line(self.raw) or {}
        return self._row

    @property
    def is_torn(self) -> bool:
        """Whether it is a last line that a kill has cut off."""
        return self.kind == UNREADABLE and not self.raw.endswith(b"\n")


def judge_lines(stream: Lines, reader: HeadReader, offset: int = 0) -> Iterator[StoredLine]:
    """Every line of a stream that is not blank; `offset` is where the stream is."""
    judge = reader.judge
    for at, raw in number_bytes(stream, offset):
        yield StoredLine(0, at, raw, judge(raw))


def iterate_beside(path: Path, default: str) -> Iterator[StoredLine]:
    """The lines of a file beside an output, which may not be there; `default` is what a line is
    that does not say it."""
    with suppress(FileNotFoundError), open_file(path, AT_ONCE) as stream:
        yield from judge_lines(stream, HeadReader(default))


class BareLine(Exception):
    """The line of a rollout without a response, which no collection writes."""


@dataclass(slots=True)
class Candidate:
    """A rollout that a filter may keep; `rollout` is read when it is asked for."""

    file: "RolloutFile"
    row: int
    """Where the file finds it again."""
    key: Key
    reward: float | None
    group: GroupScore | None
    may_hold: bool = True
    """Whether the columns satisfy the filter."""
    rest: Filter | None = None
    """What of the filter needs the rollout."""
    read: Rollout | None = None

    @property
    def place(self) -> int:
        """Where a source of several files finds it again."""
        return self.file.number << FILE_BITS | self.row

    @property
    def rollout(self) -> Rollout:
        """BareLine if the line turns out to be none."""
        if self.read is None:
            self.read = next(self.file.read([self.row]), None)
        if self.read is None:
            raise BareLine
        return self.read

    @property
    def holds(self) -> bool:
        """Whether the filter keeps it."""
        return self.may_hold and (self.rest is None or self.rest(self.rollout))

    def value(self, name: str) -> Any:
        """A field of every rollout, or one that the verifier set; None if it lacks it."""
        return self.file.value(self, name)


def choose(candidates: Iterable[Candidate]) -> Iterator[Candidate]:
    """Those that the filter keeps."""
    for candidate in candidates:
        try:
            is_kept = candidate.holds
        except BareLine:
            continue
        if is_kept:
            yield candidate


FILE_BITS = 40
"""A place is the number of a file and, in this many bits, the row of a rollout in it."""


class RolloutFile:
    """A file of rollouts: plain, or compressed as .gz or .zst.

    A line that is no rollout is left out, and counted with its reason. A rollout whose key an
    earlier line has is left out too. A line of a newer version is refused, or left out if
    `skips_newer`. Reading raises ConfigError if the file cannot be read.
    """

    def __init__(self, path: Path, *, skips_newer: bool = False, number: int = 0) -> None:
        self.path, self.number = path, number
        self._skips_newer = skips_newer
        self.left_out = Counter[str]()
        """Reason → lines, once all rollouts were taken."""

    def lines(self, *, parsed: bool = False, default: str = "rollout") -> Iterator[StoredLine]:
        """Every line that is not blank. `parsed`: each one has its `row`, which is quicker where
        all rows are wanted. `default` is what a line is that does not say it."""
        judge = partial(judge_parsed, default=default) if parsed else HeadReader(default).judge
        for number, offset, raw in place_lines(self.path, MAX_STORED):
            yield StoredLine(number, offset, raw, judge(raw))

    def heads(self, seen: Keys | None = None, *, parsed: bool = False) -> Iterator[StoredLine]:
        """The rollouts, each key once, without those that were `seen` in another file."""
        seen, self.left_out = Keys() if seen is None else seen, Counter()
        for line in self.lines(parsed=parsed):
            kind, head, *_ = line.judged
            if kind == "rollout" and head is not None:
                if seen.add(head.key):
                    yield line
                else:
                    self.left_out[REPEATED] += 1
            elif kind == NEWER and not self._skips_newer:
                raise refuse(self.path, line, is_output=False)
            elif kind not in OF_KEY:
                self.left_out[why_left_out(line.raw)] += 1

    def pieces(self, index: KeptIndex) -> Iterator[Rows | StoredLine]:
        """The file in its order: rollouts that its index knows, as rows, and all other lines. You
        can add the lines behind the index to it meanwhile. WrongIndex if the index cannot be that
        of the file; OSError if the file cannot be read."""
        with open_file(self.path, AT_ONCE) as stream:
            index.descriptor = stream.fileno()
            for piece in index.load():
                if isinstance(piece, Rows):
                    yield piece
                    continue
                if piece and os.pread(index.descriptor, 1, piece - 1) != b"\n":
                    raise WrongIndex
                raw = line_at(index.descriptor, piece)
                yield StoredLine(0, piece, raw, index.maker.reader.judge(raw))
            stream.seek(index.size)
            yield from judge_lines(stream, index.maker.reader, index.size)

    def keys(self) -> Iterator[Key]:
        """The keys of the rollouts."""
        return (line.head.key for line in self.heads() if line.head is not None)

    def rollouts(self, seen: Keys | None = None) -> Iterator[Rollout]:
        """The same rollouts, those that have a response."""
        parsed = (self.join(line) for line in self.heads(seen, parsed=True))
        return (rollout for rollout in parsed if rollout is not None)

    def at(self, offset: int) -> Rollout | None:
        """The rollout whose line begins at an offset; None if there is none."""
        return self.join_raw(self.raw_at(offset))

    def raw_at(self, offset: int) -> bytes:
        """The line that begins at an offset, as it stands."""
        with open_file(self.path) as stream:
            return line_at(stream.fileno(), offset)

    def where(self, expression: str) -> Iterator[Rollout]:
        """The rollouts for which a filter holds, as in `reward < 0.5 and num_turns > 8`;
        ConfigError if it names a field that no rollout has. Lines are read only where an index
        does not tell enough."""
        with filtering(expression) as keeps:
            for each in choose(open_rollouts(self.path).candidates(keeps)):
                with suppress(BareLine):
                    yield each.rollout

    def candidates(self, keeps: Filter | None = None) -> Iterator[Candidate]:
        """All rollouts; each tells whether `keeps` keeps it."""
        for row, rollout in enumerate(self.rollouts()):
            yield self._candidate(row, rollout, keeps)

    def _candidate(self, row: int, rollout: Rollout, keeps: Filter | None) -> Candidate:
        key, reward, group = rollout.key, rollout.reward, rollout.group
        return Candidate(self, row, key, reward, group, True, keeps, rollout)

    def read(self, rows: Sequence[int]) -> Iterator[Rollout]:
        """The rollouts of these candidates, whose rows ascend."""
        wanted = set(rows)
        return (rollout for row, rollout in enumerate(self.rollouts()) if row in wanted)

    def value(self, candidate: Candidate, name: str) -> Any:
        """A field of a candidate; None if it lacks it."""
        try:
            rollout = candidate.rollout
        except BareLine:
            return None
        return read_field(rollout, fields_of(rollout), name)

    def join(self, line: StoredLine) -> Rollout | None:
        """A rollout with its group's score and its labels; None if it has no response."""
        row = line.row
        response = row.get("response")
        if line.head is None or not isinstance(response, dict):
            return None
        if not isinstance(response.get("output"), list):
            return None
        key, rewards, labels = line.head.key, self.group_rewards, self._labels
        group = rewards.of(key) if rewards else None
        return rollout_of(row, group, labels.of(key) if labels else (), self._scans)

    def join_raw(self, raw: bytes) -> Rollout | None:
        """The same for a line as it stands; None if it is no rollout."""
        line = StoredLine(0, 0, raw, judge_parsed(raw))
        return self.join(line) if line.kind == "rollout" else None

    @cached_property
    def group_rewards(self) -> GroupRewards | None:
        """The current scores of the groups; None if none was scored."""
        return find_group_rewards(self.path)

    @cached_property
    def _labels(self) -> Any:
        return find_labels(self.path)

    @cached_property
    def _scans(self) -> Any:
        scans = find_scans(self.path)
        return scans.names if scans else None


class IndexedFile(RolloutFile):
    """A file whose lines are read where the columns of its index do not tell enough."""

    def __init__(self, path: Path, *, number: int = 0) -> None:
        super().__init__(path, skips_newer=True, number=number)
        self._index = open_index(path)
        self._index.update()
        self._columns = self._index.columns
        texts = self._columns.texts
        self.tells_keys = not any(texts[name].is_partial for name in ("id_text", "agent", "scope"))
        """Whether the columns have each key: they leave out long texts, and more than 100,000."""

    def candidates(self, keeps: Filter | None = None) -> Iterator[Candidate]:
        columns, number, scored = self._columns, len(self._columns), self.group_rewards
        may_hold, rest = bytes([1]) * number, None
        if keeps is not None:
            quick, others = split(keeps.tree, columns)
            rest = keeps.part(others) if others is not None else None
            if quick is not None:
                keeps.note_known(names_in(quick))
                may_hold = mask_of(quick, columns, number)
        kinds, rewards = columns.texts["kind"], columns.numbers["reward"]
        for row in range(number):
            if kinds[row] == "rollout":
                key, reward = self._index.key(row), rewards[row]
                group = scored.of(key) if scored else None
                held = None if isnan(reward) else reward
                yield Candidate(self, row, key, held, group, bool(may_hold[row]), rest)
        if (last := self.join_raw(self._index.rest)) is not None:
            yield self._candidate(number, last, keeps)
        self.left_out = self._index.count_others()
        if why := self._index.why_no_last():
            self.left_out[why] += 1

    def read(self, rows: Sequence[int]) -> Iterator[Rollout]:
        end = len(self._columns)
        try:
            for raw in self._index.lines(row for row in rows if row < end):
                if (rollout := self.join_raw(raw)) is not None:
                    yield rollout
        except LineChanged as error:
            self._index.update()
            raise ConfigError(f"{error} while it was read: run the same command again") from None
        if rows[-1] == end and (last := self.join_raw(self._index.rest)) is not None:
            yield last

    def value(self, candidate: Candidate, name: str) -> Any:
        if candidate.read is None:
            found = value_in(self._columns, name, candidate.row)
            if found != LEFT_OUT:
                return found
        return super().value(candidate, name)


def open_rollouts(path: Path, *, reads_all: bool = False, number: int = 0) -> RolloutFile:
    """A file of rollouts, with its index where that saves reading. `reads_all`: each rollout is
    wanted, so it would save nothing. ConfigError for a pipe."""
    if path.is_fifo():
        raise ConfigError(f"{path}: a pipe can be read only once: write it to a file first")
    begin = next((raw for *_, raw in place_lines(path, MAX_STORED)), b"")
    with open_file(path) as stream:
        is_plain = stream.read(len(begin)) == begin  # neither compressed nor behind a mark
    if is_plain and path.is_file() and not reads_all:
        found = IndexedFile(path, number=number)
        if found.tells_keys:
            return found
    return RolloutFile(path, skips_newer=True, number=number)


def refuse(path: Path, line: StoredLine, *, is_output: bool) -> OutputError:
    """The error about a line that a newer version wrote."""
    number = line.number or line_number(path, line.offset)
    return refuse_newer(path, number, line.row, is_output=is_output)


def find_group_rewards(path: Path) -> GroupRewards | None:
    """The scores beside a file of rollouts; None if there are none."""
    plain = plain_path(path)
    if plain.suffix != ".jsonl":
        return None
    groups = OutputPaths(plain).groups
    if not groups.is_file() or not path.is_file():
        return None
    return _join_groups(path, groups, *map(_state_of, (path, groups)))


@lru_cache(maxsize=4)
def _join_groups(path: Path, groups: Path, *states: tuple[Any, ...]) -> GroupRewards:
    """`states` tell whether the files are those that were joined before."""
    heads = RolloutFile(path, skips_newer=True).heads()
    return join(groups, ((line.head.key, line) for line in heads if line.head is not None))


def _state_of(path: Path) -> tuple[Any, ...]:
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


class Rollouts:
    """The rollouts of one or several files, each key once, with the scores of their groups and
    their labels. Other lines are skipped. Iterating raises ConfigError if a file cannot be read.

    Example:

        print([rollout.reward for rollout in rk.Rollouts("rollouts.jsonl")])
    """

    def __init__(self, *paths: str | Path) -> None:
        self.paths = [Path(path).expanduser() for path in paths]

    def __iter__(self) -> Iterator[Rollout]:
        """In the order of the files; ConfigError if one cannot be read, OutputError if a newer
        version wrote a line."""
        seen = Keys()
        for path in self.paths:
            yield from RolloutFile(path).rollouts(seen)

    def __repr__(self) -> str:
        return f"Rollouts({', '.join(map(str, self.paths))})"

    def to_pandas(self, limit: int | None = None) -> "DataFrame":
        """One row per rollout: identity, reward, the verifier's fields, usage, cost, seconds, text.

        ConfigError if pandas is not installed.
        """
        try:
            import pandas  # type: ignore[import-not-found]
        except ImportError:
            raise ConfigError(f"to_pandas needs pandas: {how_to_install('pandas')}") from None
        return pandas.DataFrame([_flatten(each) for each in islice(self, limit)])


def load(*paths: str | Path) -> Rollouts:
    """The rollouts of JSONL files that collections wrote; `.gz` and `.zst` too. ConfigError without
    a path.

    Example:

        for rollout in rk.load("rollouts.jsonl"):
            print(rollout.reward, rollout.text)
    """
    if not paths or not all(isinstance(path, str | Path) and path for path in paths):
        raise ConfigError(
            "load: expected the paths of files of rollouts, as in load('a.jsonl', 'b.jsonl'), got"
            f" {', '.join(map(repr, paths)) or 'none'}"
        )
    return Rollouts(*paths)


def _flatten(rollout: Rollout) -> dict[str, Any]:
    info = rollout.info
    scores = {name: rollout.line.get(name) for name in info.scores}
    return {
        **info.key._asdict(),
        "reward": rollout.reward,
        **({"group_reward": rollout.group_reward} if rollout.group else {}),
        **scores,
        "model": info.model,
        "num_turns": info.num_turns,
        "num_tool_calls": info.num_tool_calls,
        "input_tokens": info.input_tokens,
        "output_tokens": info.output_tokens,
        "cost_usd": info.cost_usd,
        "duration_s": info.duration_s,
        "text": rollout.text,
    }
