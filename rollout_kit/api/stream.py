"""Tasks of an iterable as a source of attempts."""

import asyncio
import inspect
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from contextlib import suppress
from typing import Any, Protocol

from ..collecting.schedule import END, End, Later
from ..collecting.sources import TaskSource
from ..errors import ConfigError
from ..store.compact import NumberTable
from ..store.lines import Malformed
from ..store.tasks import Reading, task_id_of
from ..types import Attempt, JsonObject, Task

UNKNOWN = 1 << 30
"""Number of rollouts of a stream, which is not known before its end."""


class RowSource(Protocol):
    """Gives rows when they are asked for: `next` is called each time that there is a free place.

    It returns a row, `END`, or a `Later` with an event that is set once there may be another row.

    Example:

        class Three:
            left = 3

            def next(self):
                if not self.left:
                    return rk.END
                self.left -= 1
                return {**rows[0], "number": self.left}


        table = await rk.collect(Three(), model=lambda params: "4", environment="string_match")
        print(len(table))
    """

    def next(self) -> JsonObject | Later | End: ...


class StreamSource(TaskSource):
    """The tasks of an iterable, synchronous or not, or of a source that is asked for each. The plan
    is known only at its end."""

    reads_as_asked = True

    def __init__(
        self,
        rows: Iterable[JsonObject] | AsyncIterable[JsonObject] | RowSource,
        *given: Any,
        **named: Any,
    ) -> None:
        super().__init__(*given, **named)
        self.is_open_ended, self.input_path = True, None
        self._rows = rows
        self._reading = Reading(self.reader)
        self._waiting: deque[JsonObject] = deque()
        self._owed: deque[Attempt | Later] = deque()
        self._has_row, self._wants_row = asyncio.Event(), asyncio.Event()
        self._has_ended = asyncio.Event()
        self._num_rows = 0
        self._error: Exception | None = None
        self._malformed: ConfigError | None = None
        """The error of the first malformed row; it rises if no row is a task."""

    @property
    def num_owed(self) -> int:
        return UNKNOWN

    async def count(self) -> None:
        return

    async def count_rest(self) -> None:
        """Read the iterable while the run goes on, one row ahead of it."""
        rows = self._rows
        if not isinstance(rows, Iterable | AsyncIterable):
            await self._has_ended.wait()
            return
        try:
            async for row in _each(rows):
                if self.reader.limit and self._reading.num_tasks >= self.reader.limit:
                    break
                self._waiting.append(row)
                self._has_row.set()
                self._wants_row.clear()
                await self._wants_row.wait()
        except Exception as error:  # it rises where the run asks for the next task
            self._error = error
        self.is_open_ended = False
        self._has_row.set()

    async def _task_numbers(self) -> NumberTable:
        """Those of the rows so far."""
        found = NumberTable()
        for number, position in self.reader.positions.items():
            found.setdefault(number, position)
        for row in self._waiting:
            with suppress(AttributeError, TypeError):  # no task
                found.setdefault(int(task_id_of(row), 16), 0)
        return found

    def next(self) -> Attempt | Later | End:
        while not self._owed:
            if (later := self._ask()) is not None:
                return later
            self._wants_row.set()
            if self._waiting:
                self._num_rows += 1
                for task in self._reading.tasks(self._num_rows, self._waiting.popleft()):
                    self._take(task)
            elif self._error is not None:
                raise self._error
            elif not self.is_open_ended:
                if self._malformed and not self._reading.num_tasks:
                    raise self._malformed
                return END
            else:
                self._has_row.clear()
                return Later(self._has_row)
        return self._owed.popleft()

    def _take(self, task: Task | Malformed) -> None:
        """Have the rollouts of a task attempted."""
        if isinstance(task, Malformed):
            self._check_malformed(task)
        self.counts += self._count_some([task])
        if self._contents.pending and not isinstance(task, Malformed):
            self._owed.extend(self.find_parked(self.wanted.keys(task)))
        self._owed.extend(self.find_owed(self._name_malformed([task])))

    def _ask(self) -> Later | None:
        """Have the source give a row, if the rows are those of one; Later if it has none yet."""
        if isinstance(self._rows, Iterable | AsyncIterable) or not self.is_open_ended:
            return None
        match self._rows.next():
            case Later() as later:
                return later
            case End():
                self.is_open_ended = False
                self._has_ended.set()
            case None:
                raise ConfigError("tasks: next() gave None; return a row, END, or a Later")
            case row:
                if inspect.iscoroutine(row):
                    row.close()
                    raise ConfigError("tasks: next() is a coroutine; write it without async")
                self._waiting.append(row)
        return None

    def _check_malformed(self, malformed: Malformed) -> None:
        error = ConfigError(f"row {malformed.line}: {malformed.message}")
        if self._command.strict_input:
            raise error
        self._malformed = self._malformed or error


async def _each(
    rows: Iterable[JsonObject] | AsyncIterable[JsonObject],
) -> AsyncIterator[JsonObject]:
    if isinstance(rows, AsyncIterable):
        found = aiter(rows)
        try:
            async for row in found:
                yield row
        finally:
            if (close := getattr(found, "aclose", None)) is not None:
                await close()
    else:
        for row in rows:
            yield row
