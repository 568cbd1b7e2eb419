"""Map rows of other formats to tasks.

A mapping is YAML. `fields` names the source of each field of the task. `prompt` builds the input
from the fields of both. Fields whose name starts with `_` are for the prompt only. Mappings of
common formats have names, in `shapes.yaml`.
"""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from string import ascii_uppercase
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, field_validator

from ...errors import suggest
from ...store.arms.template import Prompt
from ...types import JsonObject

SHAPES = Path(__file__).with_name("shapes.yaml")

MISSING = object()


class FieldSource(BaseModel):
    """Source of a field: the field `from` of the source row (`a.b` for nested ones), reduced to the
    first group of `regex` and converted with `as`; or a constant `value`."""

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
                raise ValueError(f"is not a regular expression: {error}") from None
            if groups < 1:
                raise ValueError("needs a group, as in  ####\\s*(.+)")
        return value

    def read(self, row: JsonObject) -> Any:
        """Read the value from a row; raise ValueError if it is missing."""
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
    """Texts with placeholders `{field}`."""

    model_config = ConfigDict(extra="forbid")
    user: str
    system: str | None = None


class Mapping(BaseModel):
    """Mapping of a dataset."""

    model_config = ConfigDict(extra="forbid")
    prompt: Template | None = None
    input: str | None = Field(None, description="Field that holds a list of messages.")
    fields: dict[str, FieldSource] = {}
    keep: bool = Field(False, description="Keep the other fields of the source row.")

    @field_validator("fields", mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {k: {"from": each} if isinstance(each, str) else each for k, each in value.items()}

    def build_task(self, row: JsonObject) -> JsonObject:
        """Build the task; raise ValueError if a field is missing."""
        found = {name: source.read(row) for name, source in self.fields.items()}
        params = dict(row.get("responses_create_params") or {})
        if self.input is not None:
            params["input"] = FieldSource.model_validate({"from": self.input}).read(row)
        if self.prompt is not None:
            prompt = Prompt(self.prompt.user, self.prompt.system)
            params = prompt.apply(params, {**row, **found})
        kept = row if self.keep else {}
        own = {name: value for name, value in found.items() if not name.startswith("_")}
        return {"responses_create_params": params, **_drop_params(kept), **own}


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
}
