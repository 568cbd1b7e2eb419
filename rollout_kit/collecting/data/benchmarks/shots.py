"""Worked examples of a prompt, which are rows of the dataset."""

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from ....config.benchmarks.definition import Definition
from ....errors import ConfigError
from ....types import JsonObject
from ..mapping import Mapping
from ..row_texts import RowTexts
from .row_readers import Reader


class SharedExamples(NamedTuple):
    """Rows that may be examples, those that are, and their text."""

    rows: Sequence[JsonObject]
    chosen: Sequence[JsonObject]
    text: str


class Shots:
    """The worked examples of a definition, written once for each value of `by`. ConfigError if
    there are too few; ValueError or KeyError if a row cannot be written."""

    def __init__(
        self, definition: Definition, read: Reader, rows: Sequence[JsonObject], texts: RowTexts
    ) -> None:
        assert definition.examples
        self._examples, self._where = definition.examples, str(definition)
        self._rows, self._read, self._texts = rows, read, texts
        given = definition.mapping if isinstance(definition.mapping, dict) else {}
        template = {"user": self._examples.text}
        self._mapping = Mapping.model_validate({**given, "prompt": template, "input": None})
        self._held: dict[str | None, SharedExamples] = {}

    def write_for(self, row: JsonObject) -> str:
        """The text before the question of a row, which is none of its own examples."""
        by = self._examples.by
        shared = None if by is None else str(row[by])
        if shared not in self._held:
            rows = [each for each in self._rows if by is None or str(each[by]) == shared]
            chosen = self._choose(rows)
            self._held[shared] = SharedExamples(rows, chosen, self._join(chosen))
        held = self._held[shared]
        if row in held.chosen:
            return self._join(self._choose([each for each in held.rows if each != row]))
        return held.text

    def _choose(self, rows: Sequence[JsonObject]) -> Sequence[JsonObject]:
        number, seed = self._examples.number, self._examples.seed
        if len(rows) < number:
            raise ConfigError(f"{self._where}: has {len(rows)} worked examples, and needs {number}")
        return rows[:number] if seed is None else Random(seed).sample(rows, number)

    def _join(self, rows: Sequence[JsonObject]) -> str:
        return self._examples.between.join(map(self._write, rows))

    def _write(self, row: JsonObject) -> str:
        task = self._mapping.build_task(self._read(row), self._texts)
        return task["responses_create_params"]["input"][-1]["content"]
