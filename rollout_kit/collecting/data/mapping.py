"""Map rows of other formats to tasks.

A mapping is YAML. `fields` names the source of each field of the task. `prompt` builds the input
from the fields of both. Fields whose name starts with `_` are for the prompt only. Mappings of
common formats have names, in `shapes.yaml`.
"""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from random import Random
from string import ascii_uppercase
from typing import Any

import orjson
import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

from ...config.keys import FieldSource
from ...errors import suggest
from ...store.arms.template import Prompt
from ...types import JsonObject
from .row_texts import RowTexts

SHAPES = Path(__file__).with_name("shapes.yaml")

MISSING = object()


def read_field(source: FieldSource, row: JsonObject, texts: RowTexts) -> Any:
    """The value of a field in a row; ValueError if it is missing."""
    if source.text is not None:
        return Prompt(name="text").fill_text(source.text, row)
    if source.path is None:
        return source.value
    names = [source.path] if source.path in row else source.path.split(".")
    value = _walk(row, names)
    if value is MISSING or value is None:
        hint = suggest(source.path, row) or (f"; there are {', '.join(row)}" if row else "")
        raise ValueError(f"has no field '{source.path}'{hint}")
    if source.regex is not None:
        value = texts.search(source.regex, str(value))
        if value is None:
            raise ValueError(f"'{source.path}' does not match {source.regex!r}")
    return CONVERSIONS[source.taken_as](value) if source.taken_as else value


def _walk(value: Any, names: Sequence[str]) -> Any:
    """The value at a path; `*` is each entry of a list, and a number is one of them."""
    for depth, name in enumerate(names):
        if name == "*" and isinstance(value, list):
            found = [_walk(each, names[depth + 1 :]) for each in value]
            return MISSING if any(each is MISSING for each in found) else found
        if isinstance(value, list) and name.isdecimal():
            value = value[int(name)] if int(name) < len(value) else MISSING
        else:
            value = value.get(name, MISSING) if isinstance(value, dict) else MISSING
    return value


class Template(BaseModel):
    """Texts with placeholders `{field}`. With `by`, `user` has a text for each value of a field."""

    model_config = ConfigDict(extra="forbid")
    user: str | dict[str, str]
    system: str | None = None
    by: str | None = Field(None, description="Field whose value chooses the text.")

    @model_validator(mode="after")
    def _has_texts(self) -> "Template":
        if isinstance(self.user, str) != (self.by is None):
            raise ValueError("`user` is a text, or with `by` a text for each value of that field")
        return self

    def choose(self, row: JsonObject) -> Prompt:
        """The prompt of a row; ValueError if it has a value without a text."""
        if isinstance(self.user, str):
            return Prompt(self.user, self.system)
        value = str(row.get(str(self.by)))
        if value not in self.user:
            raise ValueError(f"'{self.by}' is {value!r}, for which the prompt has no text")
        return Prompt(self.user[value], self.system)


class Choices(BaseModel):
    """The options of a multiple-choice question: `columns`, of which the first is right unless
    `answer` names the right one, or a column `list`. The column `answer` has a letter or an index.
    They make the fields `options`, `expected_answer`, `_lettered` and `_letters`."""

    model_config = ConfigDict(extra="forbid")
    columns: list[str] = Field([], max_length=26)
    list: str | None = None
    answer: str | None = None
    labels: str | None = Field(None, description="Column with the names that `answer` uses.")
    right: Any = Field(None, description="In place of `answer`: what the right one has in labels.")
    shuffle_seed: int | None = Field(None, description="Order by this seed and the row.")
    line: str = Field("{letter}) {text}", description="How an option stands in the prompt.")
    between: str = Field("\n", description="What stands between two options.")
    strip: bool = Field(False, description="Without white space around options.")

    @model_validator(mode="after")
    def _has_one_source(self) -> "Choices":
        is_known = bool(self.answer) or (self.right is not None and bool(self.labels))
        if bool(self.columns) == bool(self.list) or (self.list and not is_known):
            raise ValueError("needs `columns`, or `list` and `answer`")
        return self

    def build_fields(self, row: JsonObject, reader: RowTexts) -> JsonObject:
        """The fields of a row; ValueError if a column is missing, or is none of options."""
        texts, right = self._read(row, reader)
        texts = [each.strip() for each in texts] if self.strip else texts
        order = [*range(len(texts))]
        if self.shuffle_seed is not None:
            identity = orjson.dumps([self.shuffle_seed, row], option=orjson.OPT_SORT_KEYS)
            Random(identity).shuffle(order)
        lettered = [*zip(ascii_uppercase, (texts[place] for place in order), strict=False)]
        return {
            "options": [{letter: text} for letter, text in lettered],
            "expected_answer": ascii_uppercase[order.index(right)]
            if isinstance(right, int)
            else [ascii_uppercase[order.index(each)] for each in right],
            "_lettered": self.between.join(
                self.line.format(letter=at, text=text) for at, text in lettered
            ),
            "_letters": ",".join(letter for letter, _ in lettered),
        }

    def _read(self, row: JsonObject, reader: RowTexts) -> tuple[Sequence[str], int | Sequence[int]]:
        """The texts of the options as the row has them, and the index of the right one, or of all
        that are right."""
        answer = _walk(row, str(self.answer).split("."))
        if self.columns:
            if missing := [name for name in self.columns if not isinstance(row.get(name), str)]:
                raise ValueError(f"has no text in '{missing[0]}'{suggest(missing[0], row)}")
            right = ascii_uppercase.index(_to_letter(answer)) if self.answer else 0
            return [row[name] for name in self.columns], right
        texts = _walk(row, str(self.list).split("."))
        labels = _walk(row, self.labels.split(".")) if self.labels else None
        if isinstance(texts, str):
            texts = reader.read_list(texts)
        if isinstance(texts, dict):
            texts, labels = [*texts.values()], [*texts]
        if not isinstance(texts, Sequence) or not 1 < len(texts) < 27:
            raise ValueError(f"'{self.list}' must be a list of 2 to 26 options")
        wanted = answer if self.right is None else self.right
        found = [_find_place(each, labels) for each in _list(wanted)]
        if not found or max(found) >= len(texts):
            raise ValueError(f"the answer {wanted!r} is none of {len(texts)} options")
        return [str(text) for text in texts], found if isinstance(wanted, list) else found[0]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _find_place(answer: Any, labels: Any) -> int:
    """The index of an answer; one behind all if it is none of the labels."""
    if labels is None:
        return ascii_uppercase.index(_to_letter(answer))
    return labels.index(answer) if answer in labels else len(ascii_uppercase)


class Mapping(BaseModel):
    """Mapping of a dataset."""

    model_config = ConfigDict(extra="forbid")
    prompt: Template | None = None
    input: str | None = Field(None, description="Field that holds a list of messages.")
    fields: dict[str, FieldSource] = {}
    choices: Choices | None = None
    keep: bool = Field(False, description="Keep the other fields of the source row.")

    def build_task(self, row: JsonObject, texts: RowTexts) -> JsonObject:
        """Build the task; raise ValueError if a field is missing."""
        found = self.choices.build_fields(row, texts) if self.choices else {}
        found |= {name: read_field(source, row, texts) for name, source in self.fields.items()}
        params = dict(row.get("responses_create_params") or {})
        if self.input is not None:
            source = FieldSource.model_validate({"from": self.input})
            params["input"] = read_field(source, row, texts)
        if self.prompt is not None:
            whole = {**row, **found}
            params = self.prompt.choose(whole).apply(params, whole)
        kept = row if self.keep else {}
        own = {name: value for name, value in found.items() if not name.startswith("_")}
        task = {"responses_create_params": params, **_drop_params(kept)}
        for name, value in own.items():
            _put(task, name.split("."), value)
        return task


def _put(task: JsonObject, names: Sequence[str], value: Any) -> None:
    """Set a field of a task, or one inside an object of it; ValueError if that is no object."""
    *outer, last = names
    for name in outer:
        task = task.setdefault(name, {})
        if not isinstance(task, dict):
            raise ValueError(f"'{'.'.join(names)}': '{name}' is no object")
    task[last] = value


def get_shape(name: str) -> JsonObject:
    """Return a named mapping; raise ValueError for an unknown name."""
    known = _load_shapes()
    if name not in known:
        raise ValueError(
            f"unknown mapping '{name}'{suggest(name, known)}; known: {', '.join(known)}"
        )
    return known[name]


@cache
def _load_shapes() -> dict[str, JsonObject]:
    return yaml.safe_load(SHAPES.read_text())


def _drop_params(row: JsonObject) -> JsonObject:
    return {name: value for name, value in row.items() if name != "responses_create_params"}


def _to_letter(value: Any) -> str:
    """Convert an index to the letter of an option; keep a letter."""
    if isinstance(value, str) and value.strip().upper() in ascii_uppercase:
        return value.strip().upper()
    try:
        return ascii_uppercase[int(value)]
    except (TypeError, ValueError, IndexError):
        raise ValueError(f"{value!r} is neither the letter nor the number of an option") from None


def _to_options(value: Any) -> list[dict[str, str]]:
    if not isinstance(value, list):
        raise ValueError(f"options must be a list, not {type(value).__name__}")
    return [{letter: str(text)} for letter, text in zip(ascii_uppercase, value, strict=False)]


def _to_lettered(value: Any) -> str:
    lines = (f"{letter}: {text}" for one in _to_options(value) for letter, text in one.items())
    return "\n".join(lines)


def _find_last_boxed(value: Any) -> str:
    """Return the content of the last `\\boxed{…}`, which may contain nested braces."""
    text, start = str(value), str(value).rfind("\\boxed{")
    if start < 0:
        raise ValueError("has no \\boxed{…}")
    start += len("\\boxed{")
    depth = 1
    for place in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[start:place]
    raise ValueError("has an unclosed \\boxed{")


CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    "text": str,
    "letter": _to_letter,
    "options": _to_options,
    "lettered": _to_lettered,
    "last_boxed": _find_last_boxed,
    "json": lambda value: orjson.dumps(value).decode(),
}
