"""The keys of commands and servers as `--help` and the reference show them."""

import inspect
from collections.abc import Iterator
from typing import Any, NamedTuple

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from .fields import describe

FIRST_VERSION = "0.1.0"
"""The version that has a key whose field does not say `since`."""

UNITS = {
    "_s": "seconds",
    "_mb": "megabytes",
    "_usd": "US dollars",
    "_gb": "gigabytes",
    "_minutes": "minutes",
    "_fraction": "share from 0 to 1",
    "_tokens": "tokens",
}
"""The end of a key's name → the unit of its value."""


class KeyRow(NamedTuple):
    """One key. `default` is as it is typed on the command line; None if the key is required."""

    name: str
    type_name: str
    default: str | None
    about: str
    unit: str
    since: str


class KeyGroup(NamedTuple):
    """Keys of one subject. `title` says what they are about."""

    title: str
    rows: list[KeyRow]


def list_groups(model: type[BaseModel]) -> list[KeyGroup]:
    """The keys of a command or a server by the class that declares them: its own first, those that
    all have last; in a group, required ones first."""
    found: list[KeyGroup] = []
    fields, seen = model.model_fields, set[str]()
    for declaring in model.__mro__:
        if not (issubclass(declaring, BaseModel) and inspect.get_annotations(declaring)):
            continue
        own = [name for name in inspect.get_annotations(declaring) if name in fields]
        rows = [row for name in own if name not in seen for row in _rows(name, fields[name])]
        seen.update(own)
        if rows:
            rows.sort(key=lambda row: row.default is not None)
            found.append(KeyGroup(title_of(declaring), rows))
    return found


def title_of(model: type[BaseModel]) -> str:
    """What the keys that a class declares are about: its documentation's first sentence."""
    text = inspect.cleandoc(model.__doc__ or "").partition("\n\n")[0].replace("\n", " ")
    return (
        "Keys of this command"
        if text.startswith("ng_")
        else text.partition(". ")[0].removesuffix(".")
    )


def _rows(name: str, field: FieldInfo, prefix: str = "") -> Iterator[KeyRow]:
    key = f"{prefix}{field.alias or name}"
    nested: dict[str, FieldInfo] | None = getattr(field.annotation, "model_fields", None)
    if nested and "name" not in nested:  # a reference to a server is one value
        for inner, each in nested.items():
            yield from _rows(inner, each, f"{key}.")
        return
    extra = field.json_schema_extra
    since = extra.get("since", FIRST_VERSION) if isinstance(extra, dict) else FIRST_VERSION
    default = None if field.is_required() else format_default(field)
    about = field.description or ""
    yield KeyRow(key, describe(field.annotation), default, about, unit_of(name), str(since))


def unit_of(name: str) -> str:
    """The unit that the end of a name says; empty if there is none."""
    return next((unit for end, unit in UNITS.items() if name.endswith(end)), "")


def format_default(field: FieldInfo) -> str:
    """A default as typed on the command line."""
    default: Any = field.get_default(call_default_factory=True)
    if default is None or isinstance(default, bool):
        return {None: "null", True: "true", False: "false"}[default]
    if isinstance(default, BaseModel):
        return str(default.model_dump().get("name", default))
    return f"{default:g}" if isinstance(default, float) else str(default) or '""'
