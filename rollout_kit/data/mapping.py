"""From a row of somebody else's dataset to a task: which field becomes which, and the prompt.

A mapping is YAML: `fields` gives each of our fields its source, `prompt` builds the input from both
rows' fields. What is called `_something` only serves the prompt. Some shapes that many datasets
have are known by name: `shapes.yaml`.
"""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from string import ascii_uppercase
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, field_validator

from ..errors import suggest
from ..store.tasks import Prompt
from ..types import JsonObject

SHAPES = Path(__file__).with_name("shapes.yaml")

MISSING = object()


class Source(BaseModel):
    """Where a field's value comes from: a field of the foreign row (`a.b` is one inside another),
    the first group of `regex` in its text, what it is taken `as`; or always the same `value`."""

    model_config = ConfigDict(extra="forbid")
    path: str | None = Field(None, alias="from")
    regex: str | None = None
    taken_as: Literal["text", "letter", "options", "lettered", "last_boxed"] | None = Field(
        None, alias="as"
    )
    value: Any = None

    @field_validator("regex")
    @classmethod
    def _has_a_group(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                groups = re.compile(value).groups
            except re.error as error:
                raise ValueError(f"is no regular expression: {error}") from None
            if groups < 1:
                raise ValueError("needs a group, as in  ####\\s*(.+)")
        return value

    def of(self, row: JsonObject) -> Any:
        """Its value; ValueError where the row has none."""
        if self.path is None:
            return self.value
        value: Any = row
        for name in self.path.split("."):
            value = value.get(name, MISSING) if isinstance(value, dict) else MISSING
        if value is MISSING or value is None:
            raise ValueError(f"has no field '{self.path}'")
        if self.regex is not None:
            found = re.search(self.regex, str(value))
            if found is None:
                raise ValueError(f"'{self.path}' does not match {self.regex!r}")
            value = found[1]
        return CONVERSIONS[self.taken_as](value) if self.taken_as else value


class Template(BaseModel):
    """Texts whose `{field}` is filled."""

    model_config = ConfigDict(extra="forbid")
    user: str
    system: str | None = None


class Mapping(BaseModel):
    """How a dataset's rows become tasks."""

    model_config = ConfigDict(extra="forbid")
    prompt: Template | None = None
    input: str | None = Field(None, description="Field that holds a list of messages.")
    fields: dict[str, Source] = {}
    keep: bool = Field(False, description="Keep the foreign row's other fields.")

    @field_validator("fields", mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {k: {"from": each} if isinstance(each, str) else each for k, each in value.items()}

    def task(self, row: JsonObject) -> JsonObject:
        """The task; ValueError where a field is missing."""
        found = {name: source.of(row) for name, source in self.fields.items()}
        params = dict(row.get("responses_create_params") or {})
        if self.input is not None:
            params["input"] = Source.model_validate({"from": self.input}).of(row)
        if self.prompt is not None:
            prompt = Prompt(self.prompt.user, self.prompt.system)
            params = prompt.applied(params, {**row, **found})
        kept = row if self.keep else {}
        own = {name: value for name, value in found.items() if not name.startswith("_")}
        return {"responses_create_params": params, **_without_params(kept), **own}


def shape(name: str) -> JsonObject:
    """One that is known by name; ValueError for others."""
    known = _shapes()
    if name not in known:
        raise ValueError(
            f"no shape is called '{name}'{suggest(name, known)}; there are: {', '.join(known)}"
        )
    return known[name]


@cache
def _shapes() -> dict[str, JsonObject]:
    return yaml.safe_load(SHAPES.read_text())


def _without_params(row: JsonObject) -> JsonObject:
    return {name: value for name, value in row.items() if name != "responses_create_params"}


def _letter(value: Any) -> str:
    """An index as the letter of an option; a letter as it is."""
    if isinstance(value, str) and value.strip().upper() in ascii_uppercase:
        return value.strip().upper()
    try:
        return ascii_uppercase[int(value)]
    except (TypeError, ValueError, IndexError):
        raise ValueError(f"{value!r} is neither an option's letter nor its number") from None


def _options(value: Any) -> list[dict[str, str]]:
    if not isinstance(value, list):
        raise ValueError(f"options are a list, got {type(value).__name__}")
    return [{letter: str(text)} for letter, text in zip(ascii_uppercase, value, strict=False)]


def _lettered(value: Any) -> str:
    lines = (f"{letter}: {text}" for one in _options(value) for letter, text in one.items())
    return "\n".join(lines)


def _last_boxed(value: Any) -> str:
    """What stands in the last `\\boxed{…}` of a text, whose braces may be nested."""
    text, start = str(value), str(value).rfind("\\boxed{")
    if start < 0:
        raise ValueError("has no \\boxed{…}")
    start += len("\\boxed{")
    depth = 1
    for place in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[start:place]
    raise ValueError("has a \\boxed{ that nothing closes")


CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    "text": str,
    "letter": _letter,
    "options": _options,
    "lettered": _lettered,
    "last_boxed": _last_boxed,
}
