"""Columns of the lines of one file, in memory: about 150 bytes a line."""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ...types import JsonObject

TEXTS = (
    "kind",
    "agent",
    "scope",
    "model",
    "settings",
    "verifier",
    "finish_reason",
    "failure",
    "id_text",
    "unused",
)
"""Columns of short texts. `failure` is the class of an error; `id_text` is a task id that is no
16-digit hexadecimal number; `unused` keeps the columns behind it aligned."""

COUNTS = (
    "task_index",
    "rollout_index",
    "attempt",
    "num_turns",
    "num_tool_calls",
    "input_tokens",
    "output_tokens",
    "total_tokens",
)
"""Columns of whole numbers; exact below 2**24."""

NUMBERS = ("duration_s", "model_s", "tool_s", "verify_s", "reward", "cost_usd", "started_s")
"""Columns of 64-bit numbers. `started_s` is in seconds since 1970, UTC."""

HEAD_SIZE = 24 + 4 * (len(TEXTS) + len(COUNTS)) + 8 * len(NUMBERS)
"""Bytes of a record before the fields that the verifier set: an offset, a length, a checksum and
the task in 24 bytes, then the three groups of columns."""

EVERY: Container[str] = frozenset(("length", "check", "score", *TEXTS, *COUNTS, *NUMBERS))
"""What `Columns` takes from records, beside offsets and tasks."""

MAX_TEXTS = 100_000
"""Distinct texts that a column keeps."""

MAX_TEXT = 200
"""Characters of the longest text that a column keeps."""

LEFT_OUT = "…"
"""Stands for a text that a column does not keep: read the line."""

NAN = math.nan
_NO_NUMBER = struct.pack("<d", NAN)


class Score(NamedTuple):
    """A column of a field that the verifier set. One field has two, if some of its values are
    numbers and some are texts."""

    name: str
    is_text: bool


class TextColumn:
    """Texts as codes; code 0 is None."""

    def __init__(self, num_empty: int = 0) -> None:
        self.codes = array("I", bytes(4 * num_empty))
        self.names: list[str | None] = [None]
        self._codes: dict[str, int] = {}

    @property
    def is_partial(self) -> bool:
        """Whether some texts were left out."""
        return LEFT_OUT in self._codes

    def code_of(self, text: str | None) -> int:
        if text is None:
            return 0
        if (code := self._codes.get(text)) is None:
            if len(text) > MAX_TEXT or len(self.names) > MAX_TEXTS:
                text = LEFT_OUT
            if (code := self._codes.get(text)) is None:
                code = self.add(text)
        return code

    def add(self, text: str) -> int:
        code = self._codes[text] = len(self.names)
        self.names.append(text)
        return code

    def __getitem__(self, row: int) -> str | None:
        return self.names[self.codes[row]]


@dataclass(slots=True)
class Columns:
    """The lines of a file by row number. A number that a line lacks is NaN.

    `wanted`: the columns that are taken from records; the others stay empty.
    """

    wanted: Container[str] = EVERY
    offsets: array[int] = field(default_factory=lambda: array("Q"))
    lengths: array[int] = field(default_factory=lambda: array("I"))
    checks: array[int] = field(default_factory=lambda: array("I"))
    """CRC-32 of each line."""
    tasks: array[int] = field(default_factory=lambda: array("Q"))
    texts: dict[str, TextColumn] = field(
        default_factory=lambda: {name: TextColumn() for name in TEXTS}
    )
    numbers: dict[str, array[float]] = field(
        default_factory=lambda: {
            **{name: array("f") for name in COUNTS},
            **{name: array("d") for name in NUMBERS},
        }
    )
    scores: list[Score] = field(default_factory=list)
    """In the order in which a record holds them, after its head."""
    flags: set[str] = field(default_factory=set)
    """Scores whose numbers are all true or false."""

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def width(self) -> int:
        """Bytes of a record."""
        return HEAD_SIZE + 8 * len(self.scores)

    def add_score(self, score: Score) -> None:
        """Add a column that is empty so far."""
        self.scores.append(score)
        number = len(self) if "score" in self.wanted else 0
        if score.is_text:
            self.texts[score.name] = TextColumn(number)
        else:
            self.numbers[score.name] = array("d", [NAN]) * number

    def empty_scores(self, width: int) -> bytes:
        """What a record of `width` bytes lacks to hold the columns that were added since."""
        added = self.scores[(width - HEAD_SIZE) // 8 :]
        return b"".join(bytes(8) if score.is_text else _NO_NUMBER for score in added)

    def extend(self, records: bytes | memoryview) -> None:
        """Append records of `width` bytes each."""
        width, view = self.width, memoryview(records)
        whole, half = view.cast("Q"), view.cast("I")
        single, double = view.cast("f"), view.cast("d")
        at8, at4 = width // 8, width // 4
        wanted = self.wanted
        if "length" in wanted:
            self.lengths.frombytes(half[2::at4].tobytes())
        if "check" in wanted:
            self.checks.frombytes(half[3::at4].tobytes())
        self.tasks.frombytes(whole[2::at8].tobytes())
        for place, name in enumerate(TEXTS, 6):
            if name in wanted:
                self.texts[name].codes.frombytes(half[place::at4].tobytes())
        for place, name in enumerate(COUNTS, 6 + len(TEXTS)):
            if name in wanted:
                self.numbers[name].frombytes(single[place::at4].tobytes())
        first = HEAD_SIZE // 8
        for place, name in enumerate(NUMBERS, first - len(NUMBERS)):
            if name in wanted:
                self.numbers[name].frombytes(double[place::at8].tobytes())
        for place, score in enumerate(self.scores if "score" in wanted else (), first):
            if score.is_text:
                self.texts[score.name].codes.frombytes(half[2 * place :: at4].tobytes())
            else:
                self.numbers[score.name].frombytes(double[place::at8].tobytes())
        # last: another thread may read the rows that `len` counts
        self.offsets.frombytes(whole[0::at8].tobytes())

    def drop_rows(self) -> None:
        """Forget the rows, and keep what further records need."""
        for column in (self.offsets, self.lengths, self.checks, self.tasks):
            del column[:]
        for text in self.texts.values():
            del text.codes[:]
        for numbers in self.numbers.values():
            del numbers[:]

    def task_id(self, row: int) -> str:
        return self.texts["id_text"][row] or f"{self.tasks[row]:016x}"

    def names(self) -> Iterator[str]:
        """The names of all columns that may hold something."""
        for name in (*NUMBERS, *COUNTS, *TEXTS):
            if name not in ("unused", "id_text"):
                yield name
        yield from dict.fromkeys(score.name for score in self.scores)

    def value(self, name: str, row: int) -> float | bool | str | None:
        """The value of a column, as JSON would hold it."""
        if (text := self.texts.get(name)) is not None and (found := text[row]) is not None:
            return found
        if (numbers := self.numbers.get(name)) is None or math.isnan(number := numbers[row]):
            return None
        if name in self.flags:
            return bool(number)
        if number.is_integer() and abs(number) < 2**53:
            return int(number)
        return float(f"{number:.7g}") if numbers.typecode == "f" else number

    def fields(self, row: int, names: Sequence[str]) -> JsonObject:
        return {name: self.value(name, row) for name in names}


class Batch:
    """Records that wait to be written: all as wide as the columns are by now."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._records: list[bytes] = []
        self._width = columns.width

    def __len__(self) -> int:
        return len(self._records)

    def add(self, record: bytes) -> None:
        if len(record) != self._width:
            self._widen()
        self._records.append(record)

    def take(self) -> bytes:
        """The records, which it forgets."""
        self._widen()
        records, self._records = self._records, []
        return b"".join(records)

    def _widen(self) -> None:
        """Give the records the columns that were added since."""
        if (width := self._columns.width) != self._width:
            empty = self._columns.empty_scores(self._width)
            self._records = [each + empty for each in self._records]
            self._width = width
