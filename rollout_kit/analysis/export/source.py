"""The rollouts that exports and comparisons are made of.

A file of rollouts is known by its index: its lines are read only where columns do not tell enough.
Compressed files and the grouped view have none, and are read line by line.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from math import isnan
from pathlib import Path
from typing import Any, Protocol

from ...errors import ConfigError
from ...reading import open_file
from ...store.columns import LEFT_OUT, Columns
from ...store.compact import Keys
from ...store.groups.rewards import find_group_rewards
from ...store.index import REPEATED, LineChanged, RecordMaker, open_index, why_no_row
from ...store.input import number_lines
from ...store.labels import find_labels
from ...store.load import parse_rollout
from ...store.own_tasks import OwnTasks
from ...store.scan import parse_line
from ...types import GroupScore, Key, Rollout
from .expression import Filter, fields_of, names_in
from .grouped import is_group, read_group
from .masks import mask_of, split, value_in

OF_OTHERS = "of no task of input_jsonl_fpath"


class BareLine(Exception):
    """The line of a rollout without a response, which no collection writes."""


FILE_BITS = 40
"""A place is the number of a file and, in this many bits, the number of a rollout in it."""


@dataclass(slots=True)
class Candidate:
    """One rollout of a source; `rollout` is read when it is asked for."""

    file: "_File"
    place: int
    """Where the source finds it again."""
    key: Key
    reward: float | None
    group: GroupScore | None
    may_hold: bool = True
    """Whether the columns satisfy the filter."""
    rest: Filter | None = None
    """What of the filter needs the rollout."""
    read: Rollout | None = None

    @property
    def rollout(self) -> Rollout:
        """BareLine if the line turns out to be none."""
        if self.read is None:
            self.read = next(self.file.read([self.place]), None)
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


class RolloutSource:
    """The rollouts of several files, each key once; ConfigError if a file cannot be read."""

    def __init__(
        self,
        paths: Sequence[str | Path],
        *,
        reads_all: bool = False,
        tasks: Path | None = None,
    ) -> None:
        """`reads_all`: each rollout is wanted, so an index would save nothing. `tasks`: a file of
        tasks; rollouts of others are left out."""
        self._own = OwnTasks.of_file(tasks) if tasks else None
        self.left_out = Counter[str]()
        """Reason → lines, once all candidates were taken."""
        self._files = [
            _open(Path(path).expanduser(), number << FILE_BITS, reads_all)
            for number, path in enumerate(paths)
        ]

    def candidates(self, keeps: Filter | None = None) -> Iterator[Candidate]:
        """All rollouts, in the order of the files; each tells whether `keeps` keeps it."""
        seen, self.left_out = Keys(), Counter()
        for file in self._files:
            num_repeated = num_other = 0
            for each in file.candidates(keeps):
                if self._own is not None and each.key.task_id not in self._own:
                    num_other += 1
                elif seen.add(each.key):
                    yield each
                else:
                    num_repeated += 1
            self.left_out += file.left_out()
            self.left_out += Counter({REPEATED: num_repeated, OF_OTHERS: num_other})

    def read(self, places: Sequence[int]) -> Iterator[Rollout]:
        """The rollouts at these places, which ascend."""
        for number, found in groupby(places, lambda place: place >> FILE_BITS):
            yield from self._files[number].read(list(found))


class _File(Protocol):
    def candidates(self, keeps: Filter | None) -> Iterator[Candidate]: ...

    def left_out(self) -> Counter[str]: ...

    def read(self, places: Sequence[int]) -> Iterator[Rollout]: ...

    def value(self, candidate: Candidate, name: str) -> Any: ...


def _open(path: Path, first_place: int, reads_all: bool) -> _File:
    if path.is_fifo():
        raise ConfigError(f"{path}: a pipe can be read only once: write it to a file first")
    first = [raw for _, raw in islice(number_lines(path), 3)]
    if any(is_group(parse_line(raw)) for raw in first):  # one may be damaged
        return _StreamedFile(_Groups(path), first_place)
    begin = first[0] if first else b""
    with open_file(path) as stream:
        is_plain = stream.read(len(begin)) == begin  # neither compressed nor behind a mark
    if reads_all or not is_plain or not path.is_file():
        return _StreamedFile(_Lines(path), first_place)
    found = _IndexedFile(path, first_place)
    return found if found.tells_keys else _StreamedFile(_Lines(path), first_place)


class _Lines:
    def __init__(self, path: Path) -> None:
        self._path = path
        self.left_out = Counter[str]()

    def __iter__(self) -> Iterator[Rollout]:
        self.left_out.clear()
        rewards, labels = find_group_rewards(self._path), find_labels(self._path)
        maker = RecordMaker(Columns(), "rollout")
        for _, raw in number_lines(self._path):
            if (rollout := parse_rollout(raw, rewards, labels)) is not None:
                yield rollout
            elif maker.make(0, raw) is None:
                self.left_out[why_no_row(raw)] += 1


class _Groups:
    def __init__(self, path: Path) -> None:
        self._path = path
        self.left_out = Counter[str]()

    def __iter__(self) -> Iterator[Rollout]:
        numbers = Counter[Key]()
        for position, (number, raw) in enumerate(number_lines(self._path)):
            line = parse_line(raw)
            if line is None or not is_group(line):
                raise ConfigError(f"{self._path}:{number}: no line of grouped answers, or no JSON")
            try:
                yield from read_group(line, position, numbers)
            except (ValueError, TypeError) as error:
                raise ConfigError(f"{self._path}:{number}: {error}") from None


class _StreamedFile:
    """A file whose lines are all read, each time."""

    def __init__(self, rollouts: "_Lines | _Groups", first_place: int) -> None:
        self._rollouts, self._first_place = rollouts, first_place

    def candidates(self, keeps: Filter | None) -> Iterator[Candidate]:
        for place, rollout in enumerate(self._rollouts, self._first_place):
            yield _candidate_of(self, place, rollout, keeps)

    def left_out(self) -> Counter[str]:
        return self._rollouts.left_out

    def read(self, places: Sequence[int]) -> Iterator[Rollout]:
        wanted = set(places)
        for place, rollout in enumerate(self._rollouts, self._first_place):
            if place in wanted:
                yield rollout

    def value(self, candidate: Candidate, name: str) -> Any:
        return _value(candidate.rollout, name)


class _IndexedFile:
    """A file whose lines are read where its columns do not tell enough."""

    def __init__(self, path: Path, first_place: int) -> None:
        self._index, self._first_place = open_index(path), first_place
        self._index.update()
        self._columns = self._index.columns
        texts = self._columns.texts
        self.tells_keys = not any(texts[name].is_partial for name in ("id_text", "agent", "scope"))
        """Whether the columns have each key: they leave out long texts, and more than 100,000."""
        self._rewards, self._labels = find_group_rewards(path), find_labels(path)

    def candidates(self, keeps: Filter | None) -> Iterator[Candidate]:
        columns, number = self._columns, len(self._columns)
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
                group = self._rewards.of(key) if self._rewards else None
                held = None if isnan(reward) else reward
                place = self._first_place + row
                yield Candidate(self, place, key, held, group, bool(may_hold[row]), rest)
        if (last := self._last()) is not None:
            yield _candidate_of(self, self._first_place + number, last, keeps)

    def left_out(self) -> Counter[str]:
        found = self._index.count_others()
        if why := self._index.why_no_last():
            found[why] += 1
        return found

    def read(self, places: Sequence[int]) -> Iterator[Rollout]:
        end = self._first_place + len(self._columns)
        try:
            for raw in self._index.lines(each - self._first_place for each in places if each < end):
                if (rollout := parse_rollout(raw, self._rewards, self._labels)) is not None:
                    yield rollout
        except LineChanged as error:
            self._index.update()
            raise ConfigError(f"{error} while it was read: run the same command again") from None
        if places[-1] == end and (last := self._last()) is not None:
            yield last

    def value(self, candidate: Candidate, name: str) -> Any:
        if candidate.read is None:
            found = value_in(self._columns, name, candidate.place - self._first_place)
            if found != LEFT_OUT:
                return found
        try:
            return _value(candidate.rollout, name)
        except BareLine:
            return None

    def _last(self) -> Rollout | None:
        """The rollout of a last line without a newline, which is in no index."""
        return parse_rollout(self._index.rest, self._rewards, self._labels)


def _candidate_of(file: _File, place: int, rollout: Rollout, keeps: Filter | None) -> Candidate:
    """The candidate of a rollout that was read."""
    return Candidate(file, place, rollout.key, rollout.reward, rollout.group, True, keeps, rollout)


def _value(rollout: Rollout, name: str) -> Any:
    field = fields_of(rollout).get(name)
    return rollout.line.get(name) if field is None else field()
