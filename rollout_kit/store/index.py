"""The index of a file of rollouts: where each line stands, and columns of its numbers and short
texts, so that a million lines can be filtered and sorted without reading them again.

An index is a cache: deleting it loses nothing. To continue a million rollouts, a run reads an index
of 160 MB instead of 3 GB of lines. Nothing here decides what a column is used for. `columns` has
its bytes in memory and on disk.

It is not SQLite, which needs 0.3 s to filter a million rows and 1.2 s to sort them. With three
indexed columns SQLite needs 19 µs or more to add a rollout. Where WAL is not possible, a reader
with a cursor locks writers out.
"""

from __future__ import annotations

import os
import struct
from array import array
from bisect import bisect_left
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from hashlib import blake2b
from operator import attrgetter
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol
from zlib import crc32

from ..errors import ConfigError
from ..reading import MAX_STORED, cache_folder, iterate_lines
from ..types import Key, Rollout
from .columns import (
    COUNTS,
    GIVEN,
    LEFT_OUT,
    NAN,
    NUMBERS,
    TEXTS,
    Batch,
    Columns,
    IndexFile,
    Score,
    State,
)
from .compact import Keys, hex_number
from .files import OutputPaths
from .head import COUNT_COLUMNS, NUMBER_COLUMNS, TEXT_COLUMNS, USAGE, values_of
from .kinds import OF_KEY, REPEATED, TAKEN, HeadReader, Judged, LineHead, why_left_out
from .lines import find_figures

FIGURES = struct.Struct(f"<IIQ{len(COUNTS)}f{len(NUMBERS)}d")
"""Size and CRC-32 of the line, the number of its task, and its columns of numbers."""

OF_PLACE = 16
"""Bytes of FIGURES before the columns."""


COUNTS_OF_INFO, NUMBERS_OF_INFO = values_of(COUNT_COLUMNS), values_of(NUMBER_COLUMNS)
TEXTS_OF_INFO = values_of(TEXT_COLUMNS)

OF_USAGE = tuple(name for name in COUNT_COLUMNS if name in USAGE)
COUNTS_OF_BLOCK = attrgetter(*(each for each in COUNT_COLUMNS if each not in USAGE))
NUMBERS_OF_BLOCK = attrgetter(*NUMBER_COLUMNS)
TEXTS_OF_BLOCK = attrgetter(*TEXT_COLUMNS)

EXACT = 1 << 24
"""Whole numbers below it are exact in a column of seven digits."""


def pack_own(raw: bytes, rollout: Rollout) -> bytes:
    """The figures of a line that this process has at hand; nothing if it has to be parsed. Parsing
    takes more than twice the time."""
    head, info = rollout.head, rollout.info
    key, reward, number = info.key, head.get("reward", NAN), hex_number(info.key.task_id)
    try:
        is_usual = "cost_usd" not in head and 0 <= key.rollout_index < EXACT
        is_usual = is_usual and number is not None and TAKEN.isdisjoint(info.scores)
        if not is_usual or (reward - reward != 0 and head.get("reward") is not None):
            return b""
        own = (*COUNTS_OF_INFO(info), *NUMBERS_OF_INFO(info))
        if None in own:
            own = tuple([NAN if each is None else each for each in own])
        numbers = (info.task_index, key.rollout_index, *own, reward, seconds_of(info.started_at))
        return pack_figures(len(raw), crc32(raw), number, numbers)
    except (struct.error, TypeError, ValueError):  # of another form in JSON
        return b""


def pack_figures(size: int, check: int, number: int | None, numbers: Sequence[Any]) -> bytes:
    """FIGURES; a number that is none of its kind is NaN."""
    try:
        return FIGURES.pack(size, check, number or 0, *numbers)
    except (struct.error, OverflowError):  # None, or what no time, count or size can be
        numbers = [NAN if n is None or abs(n) > 1e38 else n for n in numbers]
        return FIGURES.pack(min(size, 0xFFFFFFFF), check, number or 0, *numbers)


def seconds_of(text: str) -> float:
    """A time as the files write it, in seconds since 1970."""
    try:
        if len(text) != 24 or text[10] + text[19] + text[23] != "T.Z":
            return datetime.fromisoformat(text).timestamp()
        return (_ms_of(text[:19]) + int(text[20:23])) / 1000
    except (ValueError, OverflowError):
        return NAN


@lru_cache(maxsize=16)
def _ms_of(second: str) -> int:
    """Cached because many rollouts share a second."""
    return round(1000 * datetime.fromisoformat(f"{second}Z").timestamp())


OFFSET, CODES = struct.Struct("<Q"), struct.Struct(f"<{len(TEXTS)}I")
CODE, NUMBER = struct.Struct("<I4x"), struct.Struct("<d")

MAX_SCORES = 200
"""Columns for fields that verifiers set; a file with more keeps the first ones."""

MAX_COMBINED = 10_000

OF_KEYS = ("agent", "scope", "settings", "verifier")
"""Columns of texts that a run needs to continue."""


class Record(NamedTuple):
    """`content` has the width that the columns have after it was made.

    `is_plain`: the line is a rollout, and `content` tells its key, settings and verifier exactly.
    """

    head: LineHead
    kind: str
    content: bytes
    is_plain: bool


class RecordMaker:
    """Makes records, and adds the texts and columns that they need to `columns`."""

    def __init__(self, columns: Columns, default: str) -> None:
        self._columns = columns
        self.reader = HeadReader(default, MAX_SCORES)
        self.reader.learn([score.name for score in columns.scores])
        self._codes: dict[tuple[str | None, ...], tuple[bytes, bool]] = {}
        """The codes of texts that stand together in many lines, and whether all are kept."""
        self._forms: set[tuple[Any, ...]] = set()
        """Names of fields that verifiers set, with the types of their values: those that have their
        columns."""

    def make(self, offset: int, raw: bytes, check: int | None = None) -> Record | None:
        """The record of a line; None if it is no rollout or failure that a collection wrote.
        `check` is the CRC-32 of the line, if that is known."""
        return self.record(offset, raw, self.reader.judge(raw), check)

    def record(
        self, offset: int, raw: bytes, judged: Judged, check: int | None = None
    ) -> Record | None:
        """The same for a line that `reader` has judged."""
        line, kind, head = judged.fields, judged.kind, judged.head
        if kind not in OF_KEY or head is None:
            return None
        if is_unusual := line is None:
            try:
                line = self.reader.convert(judged.row or {})
            except (ValueError, RecursionError):
                return None
        block, usage, error, key = line.rollout, line.usage, line.failure, head.key
        held = self.reader.attributes
        names = tuple(name for name in block.scores if name in held)
        self._learn_form(names, tuple(getattr(line, held[name]) for name in names))
        failed = error.reason if error else None
        texts = (kind, key.agent, key.scope, *TEXTS_OF_BLOCK(block), failed)
        used = [getattr(usage, name, None) or 0 for name in OF_USAGE]
        reward = NAN if kind != "rollout" or line.reward is None else line.reward
        if line.cost_usd is not None:
            block.cost_usd = line.cost_usd
        counts = (line.task_index, key.rollout_index, *COUNTS_OF_BLOCK(block), *used)
        times = (*NUMBERS_OF_BLOCK(block), reward, seconds_of(block.started_at))
        numbers = (*counts, *times)
        if (number := hex_number(key.task_id)) is None:
            texts = (*texts, key.task_id)
        check = crc32(raw) if check is None else check
        figures = pack_figures(len(raw), check, number, numbers)
        scores = {each.name: getattr(line, held[each.name]) for each in self._columns.scores}
        content, is_whole = self._complete(offset, figures, texts, scores.get)
        is_plain = kind == "rollout" and not is_unusual
        is_plain = is_plain and (line.kind is None) == (line.schema is None)
        is_plain = is_plain and is_whole and number is not None and 0 <= key.rollout_index < EXACT
        return Record(head, kind, content, is_plain)

    def make_own(self, offset: int, raw: bytes, rollout: Rollout) -> tuple[bytes, bool] | None:
        """The content of the record of a line that this process has at hand, and whether the record
        is plain. The line is not parsed if that can be avoided."""
        if not (figures := find_figures(rollout) or pack_own(raw, rollout)):
            return self._make_plainly(offset, raw)
        get, info = rollout.head.get, rollout.info
        names, (_, agent, scope, _) = info.scores, info.key
        try:
            values = [get(name) for name in names]
            if (names, *map(type, values)) not in self._forms:
                self._learn_form(names, values)
            texts = ("rollout", agent, scope, *TEXTS_OF_INFO(info), None)
            return self._complete(offset, figures, texts, get)
        except TypeError:  # of another form in JSON
            return self._make_plainly(offset, raw)

    def _make_plainly(self, offset: int, raw: bytes) -> tuple[bytes, bool] | None:
        record = self.make(offset, raw)
        return record and (record.content, record.is_plain)

    def _complete(
        self,
        offset: int,
        figures: bytes,
        texts: tuple[str | None, ...],
        score_of: Callable[[str], Any],
    ) -> tuple[bytes, bool]:
        """The record of a line; and whether it tells the settings, the verifier, and what of the
        key is a text."""
        codes, is_whole = self._codes.get(texts) or self._code(texts)
        content = OFFSET.pack(offset) + figures[:OF_PLACE] + codes + figures[OF_PLACE:]
        for name, is_text in self._columns.scores:
            value = score_of(name)
            if is_text:
                text = LEFT_OUT if isinstance(value, (list, dict)) else value
                text = text if isinstance(text, str) else None
                content += CODE.pack(self._columns.texts[name].code_of(text))
            else:
                is_number = isinstance(value, (int, float)) and value - value == 0
                content += NUMBER.pack(value if is_number else NAN)
        return content, is_whole

    def _code(self, texts: tuple[str | None, ...]) -> tuple[bytes, bool]:
        """The packed codes of TEXTS, and whether none was left out that tells a key."""
        columns = self._columns.texts
        given: dict[str, str | None] = dict(zip(GIVEN, texts, strict=False))
        codes = [columns[name].code_of(given.get(name)) for name in TEXTS]
        kept = {name: columns[name].names[code] for name, code in zip(TEXTS, codes, strict=True)}
        is_whole = all(kept[name] == given.get(name) for name in OF_KEYS)
        found = CODES.pack(*codes), is_whole
        if len(self._codes) < MAX_COMBINED:
            self._codes[texts] = found
        return found

    def _learn_form(self, names: tuple[str, ...], values: Sequence[Any]) -> None:
        """Add the columns that the verifier's fields need, if their form is new."""
        if (form := (names, *map(type, values))) in self._forms:
            return
        if len(self._forms) < MAX_COMBINED:
            self._forms.add(form)
        columns = self._columns
        for name, value in zip(names, values, strict=True):
            if isinstance(value, (str, list, dict)):
                held: Mapping[str, Any] = columns.texts
            elif isinstance(value, (int, float)):
                held = columns.numbers
                if not isinstance(value, bool):
                    columns.flags.discard(name)
            else:
                continue
            if name not in held and len(columns.scores) < MAX_SCORES:
                columns.add_score(Score(name, held is columns.texts))
                self.reader.learn([name])
                if isinstance(value, bool):
                    columns.flags.add(name)


class KeepsInput(Protocol):
    """The index of an output, as far as it keeps what is known of an input."""

    def input_ids(self, mark: bytes) -> array[int]: ...

    def keep_input(self, mark: bytes, ids: array[int]) -> None: ...


class Leading:
    """The leading lines are distinct tasks, without another line between them. All passes over the
    input share them. The next run parses only those of them that lack a rollout, because parsing
    and hashing a million rows takes longer than all else before the first request.
    """

    def __init__(self) -> None:
        self.ids = array("Q")
        """Ids as numbers; the first line has number 1."""
        self.known = array("Q")
        """Those that an earlier run left."""
        self._mark = b""

    def follow(self, line: int, task: int, position: int) -> None:
        """Take the task of a line, and its position among the distinct tasks."""
        ids = self.ids
        if line == len(ids) + 1 == position + 1:
            ids.append(task)
        elif line <= len(ids) and ids[line - 1] != task:
            del ids[line - 1 :]  # an earlier run has seen another input

    def restore(self, index: KeepsInput, mark: bytes) -> None:
        """Take over what an earlier run left. `mark` stands for the input as it is, and for how
        its lines become tasks."""
        self._mark, self.known = mark, index.input_ids(mark)
        self.ids.extend(self.known[len(self.ids) :])

    def keep(self, index: KeepsInput, mark: bytes) -> None:
        """Leave all ids to the next run, unless the input has changed meanwhile."""
        if mark and mark == self._mark and self.ids != self.known:
            index.keep_input(mark, self.ids)

    def find_owed(self, done: Keys, wanted: Iterable[Key]) -> array[int]:
        """The known lines, from 0, whose task lacks one of the wanted keys, whatever task these
        name."""
        owed: set[int] = set()
        for key in wanted:
            tasks = done.tasks(key[1:])
            owed.update(row for row, task in enumerate(self.known) if task not in tasks)
        return array("Q", sorted(owed))


MAX_ODD = 20_000
"""With more lines that have to be read themselves, the whole file is read."""

AT_ONCE = 1 << 18
"""Bytes of lines whose records are made together."""

WANTED = frozenset(("check", "rollout_index", *OF_KEYS))
"""The columns that continuing a run needs."""


class WrongIndex(Exception):
    """The index says what cannot be: it is not the one of this file."""


class Rows(NamedTuple):
    """Consecutive lines of rollouts, as rows of the columns: `start` up to `end`."""

    columns: Columns
    start: int
    end: int


class KeptIndex:
    """The index of the main file; `path` None keeps it nowhere.

    First `load` gives what it holds, with the columns `wanted`; then each further line is told to
    it, in order. `size` is how much of the main file it covers.
    """

    def __init__(self, path: Path | None, wanted: Container[str] = WANTED) -> None:
        self._file, self._wanted = IndexFile(path), wanted
        self.descriptor = -1
        """The main file, once it is open; until then what is written is valid for no file."""
        self.reset()

    def load(self) -> Iterator[Rows | int]:
        """What a valid index holds, in file order: rows, and offsets of the lines that have to be
        read themselves. Nothing if it is not valid for the main file."""
        columns = Columns(self._wanted)
        state = self._file.load(columns)
        odd = array("Q", sorted(set(self._file.odd)))
        if state is None or not state.holds_for(self.descriptor) or len(odd) > MAX_ODD:
            self.reset()
            return
        self._begin(columns, state)
        start, offsets = 0, columns.offsets
        for offset in odd:
            end = bisect_left(offsets, offset)
            if start < end:
                yield Rows(columns, start, end)
            yield offset
            start = end + (end < len(offsets) and offsets[end] == offset)
        if start < len(offsets):
            yield Rows(columns, start, len(offsets))
        columns.drop_rows()

    def reset(self) -> None:
        """Begin anew, with an empty index."""
        self._file.reset()
        self._begin(Columns(self._wanted), None)

    @property
    def maker(self) -> RecordMaker:
        """Makes the records of further lines."""
        return self._maker

    def keep(self, offset: int, raw: bytes, record: Record | None, *, is_odd: bool) -> None:
        """Keep the record of the next line, if it has one. `is_odd`: whether the line has to be
        read itself to continue a run."""
        self._make_waiting()
        self.size = offset + len(raw)
        if record is not None and self._file.path:
            self._records.add(record.content)
        if is_odd and self._file.path:
            self._odd.append(offset)

    def append(self, offset: int, raw: bytes, rollout: Rollout) -> None:
        """Keep the record of a rollout that was just written."""
        if self._file.path is None:
            return
        self.size = offset + len(raw)
        self._waiting.append((offset, raw, rollout))
        # a rollout of this process is recorded now: its response should not stay in memory
        if not find_figures(rollout) or self.size - self._waiting[0][0] >= AT_ONCE:
            self._make_waiting()

    def _make_waiting(self) -> None:
        """Make the records of the rollouts that wait for it."""
        waiting, self._waiting = self._waiting, []
        for offset, raw, rollout in waiting:
            content, is_plain = self._maker.make_own(offset, raw, rollout) or (b"", False)
            if content:
                self._records.add(content)
            if not is_plain:
                self._odd.append(offset)

    def take(self, offset: int, raw: bytes, check: int) -> None:
        """Keep the record of a rollout that another program may have written. `check` is the CRC-32
        of its line."""
        if self._file.path is None:
            return
        record = self._maker.make(offset, raw, check)
        self.keep(offset, raw, record, is_odd=record is None or not record.is_plain)

    @property
    def num_waiting(self) -> int:
        """Records that are not written yet."""
        return len(self._records) + len(self._waiting)

    def flush(self) -> None:
        """Write what was kept since, and the state of the main file."""
        if self._file.path is None or (self.size < SMALL and not self._file.is_begun):
            return
        self._make_waiting()
        is_open = self.descriptor >= 0
        state = State.of(self.descriptor, self.size) if is_open else State(self.size, 0, 0, 0, 0)
        if state != self._state:
            self._file.append(self._columns, self._records.take(), state, self._odd)
            self._state, self._odd = state, array("Q")

    def input_ids(self, mark: bytes) -> array[int]:
        """The ids of the leading lines of the input with this mark, as far as they are known."""
        held, ids = self._file.input, array("Q")
        if mark and held.startswith(mark) and (len(held) - len(mark)) % ids.itemsize == 0:
            ids.frombytes(held[len(mark) :])
        self._file.input = b""
        return ids

    def keep_input(self, mark: bytes, ids: array[int]) -> None:
        """Keep the ids of the leading lines of an input for the next run."""
        self.flush()
        if self._state and self._file.is_begun:
            self._file.append(self._columns, b"", self._state, input=mark + ids.tobytes())

    def close(self) -> None:
        self._file.close()

    def drop(self) -> None:
        """Remove the index, which does not fit any more."""
        self.reset()
        self._file.remove()

    def _begin(self, columns: Columns, state: State | None) -> None:
        self._columns, self._state = columns, state
        self._maker = RecordMaker(columns, "rollout")
        self._records = Batch(columns)
        self._waiting: list[tuple[int, bytes, Rollout]] = []
        """Rollouts of workers whose records are still to be made: it is cheaper for many at once,
        and a message may have few."""
        self._odd = array("Q")
        self.size = state.size if state else 0


def explain_edit(paths: OutputPaths) -> str:
    """What is said when a line is not the one that the index told."""
    return (
        f"{paths.main} was edited in a way that its size and time do not tell, so what it lacks was"
        f" not known; the run stopped, and {paths.index} is removed: run the same command again"
    )


BATCH = 4096
"""Lines in a chunk of the index file."""

BLOCK = 1 << 20
"""Bytes per read."""

SMALL = 1 << 20
"""A smaller file is read in less time than its index would save."""


class LineChanged(Exception):
    """A line is not the one that was indexed: the file was edited."""


@dataclass
class Index:
    """The rollouts, responses without a verdict and failures of one JSONL file, by row number.

    `kept_at`: the file of the index, which only one process may write; None keeps it in memory.
    `beside`: an index that the writer of the file keeps; it is read where it is valid, and what it
    lacks stays in memory.
    """

    path: Path
    default: str = "rollout"
    kept_at: Path | None = None
    beside: Path | None = None
    columns: Columns = field(default_factory=Columns)
    left_out: Counter[str] = field(default_factory=Counter)
    """Reason → lines without a row, of those read by this process; see `count_others`."""
    num_rebuilt: int = 0
    """How often an edited file was indexed anew: row numbers before are void."""
    size: int = 0
    """Bytes that are indexed."""
    rest: bytes = b""
    """What followed them at the last update: a line without a newline, which has no row."""

    def __post_init__(self) -> None:
        self._file = IndexFile(None)
        self._state: State | None = self._load_beside()
        self._seen: Keys | None = None
        """Keys of the rollouts, once lines are added."""
        self._maker: RecordMaker | None = None
        self._is_edited = False
        """A line was read that is not the one that was indexed."""
        if self._state is None:
            self.columns, self._file = Columns(), IndexFile(self.kept_at)
            self._state = self._file.load(self.columns)
        if self._state is None:
            self.columns = Columns()
        self.size = self._state.size if self._state else 0

    def _load_beside(self) -> State | None:
        """Read the index that the writer of the file keeps; None if it is not valid."""
        with suppress(OSError), self.path.open("rb") as stream:
            state = IndexFile(self.beside).load(self.columns)
            if state is not None and state.holds_for(stream.fileno()):
                return state
        return None

    def __len__(self) -> int:
        return len(self.columns)

    def update(self, pause: Callable[[], None] = lambda: None) -> bool:
        """Index what was added to the file, or all of it after an edit; True if rows changed.

        `pause` is called between batches. ConfigError if the file cannot be read.
        """
        try:
            with self.path.open("rb", BLOCK) as stream:
                if self._is_edited or (self._state and not self._state.holds_for(stream.fileno())):
                    self._reset()
                if os.fstat(stream.fileno()).st_size == self.size:
                    self.rest = b""
                    return False
                before = len(self), self.num_rebuilt
                self._add(stream, pause)
                return before != (len(self), self.num_rebuilt)
        except FileNotFoundError:
            if not len(self):
                return False
            self._reset()
            return True
        except OSError as error:
            raise ConfigError(f"{self.path}: cannot be read: {error.strerror}") from None
        finally:
            self._file.close()

    def line(self, row: int) -> bytes:
        """The line as it stands; LineChanged if it is not the one that was indexed."""
        return next(self.lines([row]))

    def lines(self, rows: Iterable[int]) -> Iterator[bytes]:
        """The same for several rows, in their order."""
        columns = self.columns
        with suppress(OSError), self.path.open("rb") as stream:
            for row in rows:
                raw = os.pread(stream.fileno(), columns.lengths[row], columns.offsets[row])
                if len(raw) != columns.lengths[row] or crc32(raw) != columns.checks[row]:
                    break
                yield raw
            else:
                return
        self._is_edited = True
        raise LineChanged(f"{self.path} was edited")

    def key(self, row: int) -> Key:
        columns = self.columns
        agent, scope = columns.texts["agent"][row], columns.texts["scope"][row]
        index = int(columns.numbers["rollout_index"][row])
        return Key(columns.task_id(row), agent or "", scope or "", index)

    def count_others(self) -> Counter[str]:
        """Reason → lines that have no row, among those that are indexed."""
        maker, found = RecordMaker(Columns(), self.default), Counter[str]()
        with self.path.open("rb") as stream:
            for begin, end in self._gaps():
                stream.seek(begin)
                while (at := stream.tell()) < end:
                    raw = stream.readline(end - at)
                    if at == 0:
                        raw = raw.removeprefix(BOM_UTF8)
                    if maker.make(at, raw) is not None:
                        found[REPEATED] += 1
                    elif raw.strip():
                        found[why_left_out(raw)] += 1
        return found

    def why_no_last(self) -> str:
        """Why a last line without a newline is no rollout; empty if it is one, or there is none."""
        if not self.rest.strip() or RecordMaker(Columns(), self.default).make(0, self.rest):
            return ""
        return why_left_out(self.rest)

    def _gaps(self) -> Iterator[tuple[int, int]]:
        """(begin, end) of the parts of the file that have no rows."""
        columns, end = self.columns, 0
        if sum(columns.lengths) != self.size:
            for begin, length in zip(columns.offsets, columns.lengths, strict=True):
                if end < begin:
                    yield end, begin
                end = begin + length
            yield end, self.size

    def _reset(self) -> None:
        self.columns = Columns()
        self._file.close()
        self._file = IndexFile(self.kept_at)
        self._state, self._seen, self._maker, self.size = None, None, None, 0
        self._is_edited = False
        self.left_out.clear()
        self.rest = b""
        self.num_rebuilt += 1

    def _add(self, stream: BinaryIO, pause: Callable[[], None]) -> None:
        columns = self.columns
        if self._maker is None:
            self._maker = RecordMaker(columns, self.default)
        if self._seen is None:
            self._seen = Keys()
            for row in range(len(columns)):
                if columns.texts["kind"][row] == "rollout":
                    self._seen.add(self.key(row))
        records, end = Batch(columns), self.size
        stream.seek(end)
        self.rest = b""
        for number, raw in enumerate(iterate_lines(stream, MAX_STORED), 1):
            if not raw.endswith(b"\n"):
                self.rest = raw if end else raw.removeprefix(BOM_UTF8)
                break
            if number % BATCH == 0 and records:
                self._keep(stream, records, end)
                pause()
            offset, end = end, end + len(raw)
            if offset == 0 and raw.startswith(BOM_UTF8):
                offset, raw = len(BOM_UTF8), raw[len(BOM_UTF8) :]
            if (record := self._maker.make(offset, raw)) is None:
                if not raw.isspace():
                    self.left_out[why_left_out(raw)] += 1
            elif record.kind == "rollout" and not self._seen.add(record.head.key):
                self.left_out[REPEATED] += 1
            else:
                records.add(record.content)
        self._keep(stream, records, end)

    def _keep(self, stream: BinaryIO, records: Batch, end: int) -> None:
        content = records.take()
        self.columns.extend(content)
        self.size = end
        self._state = State.of(stream.fileno(), end)
        self._file.append(self.columns, content, self._state)


def open_index(path: Path) -> Index:
    """The index of a file of rollouts, for a reader: the one beside it where that is valid. Where
    there is none it is kept in the user's cache folder, unless the file is small."""
    is_small = path.stat().st_size < SMALL
    return Index(path, "rollout", None if is_small else cache_path(path), OutputPaths(path).index)


def cache_path(path: Path) -> Path | None:
    """Where a reader without the output's lock keeps its index of a file; None for nowhere."""
    name = blake2b(os.fsencode(path.resolve()), digest_size=12).hexdigest()
    folder = cache_folder()
    return folder and folder / "index" / f"{name}.index"
