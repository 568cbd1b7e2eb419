"""Summarize a file of tasks while it is written; memory does not grow with the rows."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import orjson

from ...errors import number_of
from ...responses import content_texts, input_items
from ...store.compact import NumberTable
from ...store.tasks import task_id_of
from ...types import JsonObject

MAX_VALUES = 20
"""Values are counted only for fields with at most this many different ones."""

MAX_NAMED = 5
"""Listed examples of rows left out, and of duplicates."""

KINDS = {str: "text", bool: "bool", int: "number", float: "number", list: "list", dict: "object"}


@dataclass(slots=True)
class Numbers:
    """Minimum, maximum, mean and standard deviation of numbers (Welford's algorithm)."""

    count: int = 0
    least: float = math.inf
    largest: float = -math.inf
    mean: float = 0.0
    squares: float = 0.0

    def add(self, value: float) -> None:
        self.count += 1
        self.least, self.largest = min(self.least, value), max(self.largest, value)
        step = value - self.mean
        self.mean += step / self.count
        self.squares += step * (value - self.mean)

    def to_json(self) -> JsonObject:
        if not self.count:
            return {}
        spread = math.sqrt(self.squares / (self.count - 1)) if self.count > 1 else 0.0
        found = {"min": self.least, "max": self.largest, "mean": self.mean, "std": spread}
        return {name: round(value, 6) for name, value in found.items()}


@dataclass(slots=True)
class FieldSummary:
    """Statistics of a top-level field: values of numbers, lengths of texts and lists."""

    present: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    numbers: Numbers = field(default_factory=Numbers)
    lengths: Numbers = field(default_factory=Numbers)
    values: Counter[str] | None = field(default_factory=Counter)

    def add(self, value: Any) -> None:
        self.present += 1
        self.kinds[KINDS.get(type(value), "null")] += 1
        if isinstance(value, bool | int | float):
            self.numbers.add(value)
        elif isinstance(value, str | list | dict):
            self.lengths.add(len(value))
        if self.values is not None and not isinstance(value, list | dict):
            self.values[str(value)[:100]] += 1
            if len(self.values) > MAX_VALUES:
                self.values = None

    def to_json(self, rows: int) -> JsonObject:
        found: JsonObject = {"present": self.present, "kinds": dict(self.kinds)}
        if self.present < rows:
            found["missing"] = rows - self.present
        found |= self.numbers.to_json()
        if self.lengths.count:
            found["length"] = self.lengths.to_json()
        if self.values and len(self.values) < self.present:
            found["values"] = dict(self.values.most_common())
        return found


@dataclass(slots=True)
class Summary:
    """Summary of one file."""

    rows: int = 0
    written: int = 0
    duplicates: int = 0
    duplicate_rows: list[str] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    left_out_rows: list[str] = field(default_factory=list)
    fields: dict[str, FieldSummary] = field(default_factory=dict)
    prompt_words: Numbers = field(default_factory=Numbers)
    messages: Numbers = field(default_factory=Numbers)
    tools: Numbers = field(default_factory=Numbers)
    tasks: NumberTable = field(default_factory=NumberTable)
    prompts: NumberTable = field(default_factory=NumberTable)
    notes: list[str] = field(default_factory=list)

    def leave_out(self, where: str, problem: str) -> None:
        self.rows += 1
        self.left_out[problem[:200]] += 1
        if len(self.left_out_rows) < MAX_NAMED:
            self.left_out_rows.append(f"{where}: {problem}")

    def is_new(self, row: JsonObject, where: str) -> bool:
        """Count a row; return False if its content occurred before. TypeError if it is not JSON."""
        self.rows += 1
        if self.tasks.setdefault(int(task_id_of(row), 16), self.rows) == self.rows:
            return True
        self.duplicates += 1
        if len(self.duplicate_rows) < MAX_NAMED:
            self.duplicate_rows.append(where)
        return False

    def add(self, row: JsonObject) -> None:
        """Add a written row."""
        self.written += 1
        for name, value in row.items():
            if name not in ("responses_create_params", "agent_ref"):
                self.fields.setdefault(name, FieldSummary()).add(value)
        params = row["responses_create_params"]
        items = input_items(params)
        texts = [text for item in items for text in content_texts(item.get("content"))]
        self.prompt_words.add(sum(len(text.split()) for text in texts))
        self.messages.add(len(items))
        self.tools.add(len(params.get("tools") or ()))
        self.prompts.setdefault(hash_prompt(row), self.written)

    def to_json(self) -> JsonObject:
        return {
            "rows": self.rows,
            "written": self.written,
            "tasks": self.rows - self.left_out.total() - self.duplicates,
            "duplicates": self.duplicates,
            "duplicate_rows": self.duplicate_rows,
            "left_out": self.left_out.total(),
            "left_out_reasons": dict(self.left_out.most_common(MAX_NAMED)),
            "left_out_rows": self.left_out_rows,
            "prompt_words": self.prompt_words.to_json(),
            "messages": self.messages.to_json(),
            "tools": self.tools.to_json(),
            "fields": {name: each.to_json(self.written) for name, each in self.fields.items()},
            "notes": self.notes,
        }


def hash_prompt(row: JsonObject) -> int:
    """Hash the prompt to 64 bits."""
    asked = [
        (item.get("role"), *content_texts(item.get("content")))
        for item in input_items(row["responses_create_params"])
    ]
    return int.from_bytes(blake2b(orjson.dumps(asked), digest_size=8).digest())


def count_shared_prompts(one: Summary, other: Summary) -> int:
    """Count the prompts of `one` that occur in `other`."""
    held = {number for number, _ in other.prompts.items()}
    return sum(number in held for number, _ in one.prompts.items())


def format_summaries(files: JsonObject) -> Iterable[str]:
    """Format the summary of each file as text."""
    for path, found in files.items():
        counts = f"{number_of(found['written'], 'row')}, {number_of(found['tasks'], 'task')}"
        yield f"{path}: {counts}"
        words = found["prompt_words"]
        if words:
            yield f"  prompt: {words['min']:g} … {words['max']:g} words, mean {words['mean']:.1f}"
        for name, each in found["fields"].items():
            yield f"  {name}: {_format_field(each)}"
        if found["duplicates"]:
            named = ", ".join(found["duplicate_rows"])
            yield f"  {number_of(found['duplicates'], 'repetition')} of an earlier row: {named}"
        if found["left_out"]:
            yield f"  {number_of(found['left_out'], 'row')} left out; reasons, and the first rows:"
        for reason, number in found["left_out_reasons"].items():
            yield f"    {number:,} × {reason}"
        yield from (f"    {each}" for each in found["left_out_rows"])
        yield from (f"  {note}" for note in found["notes"])


def _format_field(each: JsonObject) -> str:
    parts = [" or ".join(each["kinds"])]
    if "min" in each:
        parts.append(f"{each['min']:g} … {each['max']:g}, mean {each['mean']:.4g}")
    if "length" in each:
        length = each["length"]
        parts.append(f"length {length['min']:g} … {length['max']:g}, mean {length['mean']:.4g}")
    if "values" in each:
        top = list(each["values"].items())[:5]
        parts.append(", ".join(f"{value!r} × {number:,}" for value, number in top))
    if "missing" in each:
        parts.append(f"missing in {number_of(each['missing'], 'row')}")
    return "; ".join(parts)
