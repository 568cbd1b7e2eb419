"""The correct answers of rows, and the form in which a gold answer gives one."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ...responses import content_texts, input_items, output_text
from ...types import JsonObject
from ..answers import LABEL_CHARS, TRUTH

NOT_A_LABEL = re.compile("mode|type|format|pattern|regex|length|limit|count$|num_|_num|schema")
"""Fields named like an answer that say how it is compared."""

SETTINGS = ("responses_create_params", "agent_ref")

IN_GOLD = re.compile("^(gold|wrong)_(output|items)$")

MAX_FIELDS = 200_000
"""Longer texts of a row are cut."""


@dataclass(frozen=True, slots=True)
class GamedTask:
    """A row as a model and a verifier see it. `label` is the correct answer, '' if no field has it
    as one text; `others` are the labels of all rows."""

    row: JsonObject
    prompt: str
    gold: str
    label: str
    others: tuple[str, ...]

    def wrap(self, text: str) -> str:
        """The gold answer with another text in place of the label; '' where it does not stand."""
        if not self.label:
            return ""
        pattern = rf"(?i)(?<!\w){re.escape(self.label)}(?!\w)"
        found, count = re.subn(pattern, lambda _: text, self.gold)
        return found if count else ""


def read_tasks(rows: Sequence[JsonObject], golds: Sequence[JsonObject]) -> list[GamedTask]:
    """Read rows and their gold responses."""
    texts = [output_text(gold) for gold in golds]
    labels = [find_label(row, text) for row, text in zip(rows, texts, strict=True)]
    every = tuple(dict.fromkeys(filter(None, labels)))
    return [
        GamedTask(row, read_prompt(row), text, label, every)
        for row, text, label in zip(rows, texts, labels, strict=True)
    ]


def read_prompt(row: JsonObject) -> str:
    """All that the model is sent as text."""
    params = row.get("responses_create_params") or {}
    parts = [str(params.get("instructions") or "")]
    for item in input_items(params):
        parts += content_texts(item.get("content"))
    parts += [
        str(tool.get("description") or "")
        for tool in params.get("tools") or ()
        if isinstance(tool, dict)
    ]
    return "\n".join(filter(None, parts))


def find_label(row: JsonObject, gold: str) -> str:
    """The correct answer of a row: of the fields named like one, the first whose text stands in the
    gold answer, or else the first."""
    found = [text for name, text in list_fields(row) if TRUTH.search(name)]
    found = [text for text in found if 0 < len(text) <= LABEL_CHARS]
    inside = [text for text in found if re.search(rf"(?i)(?<!\w){re.escape(text)}(?!\w)", gold)]
    return (inside or found or [""])[0]


def list_fields(row: JsonObject) -> list[tuple[str, str]]:
    """Name and value of every field of a row that the model is not sent, at any depth."""
    kept = {name: row[name] for name in row if name not in SETTINGS and not IN_GOLD.match(name)}
    return list(_walk("", kept))


def _walk(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, part in value.items():
            if not NOT_A_LABEL.search(str(key)):
                yield from _walk(str(key), part)
    elif isinstance(value, list):
        for part in value:
            yield from _walk(name, part)
    elif value is not None and not isinstance(value, bool):
        yield name, str(value).strip()[:MAX_FIELDS]
