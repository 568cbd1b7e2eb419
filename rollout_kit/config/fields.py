"""Descriptions of pydantic fields and validation errors, for `--help` and for error messages.

This module knows pydantic, but not where values come from.
"""

import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import AliasChoices, AliasPath, BaseModel, ValidationError
from pydantic.fields import FieldInfo

from ..errors import suggest
from ..secrets import MASK, is_secret_key
from .keys import Parallelism

WORDS: dict[Any, str] = {
    int: "an int",
    float: "a number",
    bool: "true or false",
    str: "text",
    Path: "a path",
    type(None): "null",
    dict: "a mapping",
    list: "a list",
    Any: "anything",
    Parallelism: "an int or text",
}


class Problem(NamedTuple):
    """One error: `path` is the place of the key, `reason` a clause to follow a colon."""

    path: tuple[str, ...]
    reason: str
    value: Any = None
    is_unknown: bool = False


def spellings(field_name: str, field: FieldInfo) -> list[str]:
    """The keys under which a field is accepted, the preferred one first."""
    alias = field.validation_alias or field.alias
    match alias:
        case AliasChoices():
            found = [choice for choice in alias.choices if isinstance(choice, str)]
        case AliasPath() | None:
            found = [field_name]
        case _:
            found = [str(alias)]
    return found


def keys(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """Every accepted key with its field."""
    populate = model.model_config.get("populate_by_name") or model.model_config.get(
        "validate_by_name"
    )
    found = {}
    for name, field in model.model_fields.items():
        for key in [*spellings(name, field), *([name] if populate else [])]:
            found[key] = field
    return found


def field_at(model: type[BaseModel], path: Iterable[str]) -> Any:
    """The annotation at a path, also of a key of a mapping to one type; None if it is not
    declared."""
    annotation: Any = model
    for key in path:
        parts = [part for part in _parts(annotation) if part is not type(None)]
        inner = next((part for part in parts if _is_model(part)), None)
        field = keys(inner).get(str(key)) if inner else None
        held = [part for part in parts if get_origin(part) is dict]
        if len(parts) > 1:  # of a union, only a mapping to settings declares its keys
            held = [part for part in held if _is_model(get_args(part)[-1])]
        if field is not None:
            annotation = field.annotation
        elif len(held) == 1 and Any not in get_args(held[0]):
            annotation = get_args(held[0])[-1]
        else:
            return None
    return annotation


def is_text(annotation: Any) -> bool:
    """Whether the annotation accepts only text, paths and null, so that values need no parsing."""
    parts = [part for part in _parts(annotation) if part is not type(None)]
    return bool(parts) and all(
        part in (str, Path)
        or (get_origin(part) is Literal and all(isinstance(one, str) for one in get_args(part)))
        for part in parts
    )


def is_text_or_list(annotation: Any) -> bool:
    """Whether it accepts text and, besides, only lists and mappings, which begin with a bracket."""
    kinds = [get_origin(part) or part for part in _parts(annotation)]
    return (str in kinds or Path in kinds) and set(kinds) <= {str, Path, list, dict, type(None)}


def describe(annotation: Any) -> str:
    """`int | None` as "an int or null"."""
    return " or ".join(dict.fromkeys(_words(part) for part in _parts(annotation)))


def problems(
    error: ValidationError, model: type[BaseModel], also: Iterable[str] = ()
) -> list[Problem]:
    """One Problem per key; the errors of all members of a union become one.

    `also` are further keys to suggest for a typo.
    """
    found: dict[tuple[str, ...], Problem] = {}
    for detail in error.errors(include_url=False):
        path = _declared(model, detail["loc"])
        problem = _problem(model, path, detail, also)
        kept = found.get(problem.path)
        if kept is None or (kept.reason.startswith("expected") and not _is_type_error(detail)):
            found[problem.path] = problem
    # an error at `num_repeats.b` replaces the less precise one at `num_repeats`
    return [
        problem
        for path, problem in found.items()
        if not any(other[: len(path)] == path and other != path for other in found)
    ]


def find_misplaced_booleans(model: type[BaseModel], given: Any) -> Iterator[Problem]:
    """A problem for each `true` or `false` in place of a number, which pydantic takes as 1 or 0, or
    of a path."""
    for name, field in keys(model).items():
        if given.get(name) in ("true", "false") and Path in _parts(field.annotation):
            yield Problem((name,), f"expected {describe(field.annotation)}", given[name])
    for path, value in _booleans(given, ()):
        annotation: Any = model
        for key in path:
            annotation = _inside(annotation, key)
        kinds = _parts(annotation)
        if kinds and not {bool, Any, object, None}.intersection(kinds) and {int, float} & {*kinds}:
            yield Problem(tuple(map(str, path)), f"expected {describe(annotation)}", value)


def _booleans(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], bool]]:
    if isinstance(value, bool):
        yield path, value
    elif isinstance(value, dict | list):
        for key, child in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _booleans(child, (*path, key))


def _inside(annotation: Any, key: Any) -> Any:
    """The annotation of what `key` names inside; None if it is not declared."""
    for part in _parts(annotation):
        if _is_model(part):
            declared = keys(part).get(str(key))
            return declared.annotation if declared else None
        if get_origin(part) in (dict, list) and get_args(part):
            return get_args(part)[-1]
    return None


def show_value(problem: Problem) -> str:
    """The refused value, shortened; secrets are masked."""
    is_secret = any(is_secret_key(part) for part in problem.path)
    return MASK if is_secret else f"{problem.value!r:.80}"


def _problem(
    model: type[BaseModel], path: tuple[str, ...], detail: Any, also: Iterable[str]
) -> Problem:
    kind, value = detail["type"], detail.get("input")
    if kind == "extra_forbidden":
        place = tuple(str(part) for part in detail["loc"])
        owner = field_at(model, place[:-1]) if len(place) > 1 else model
        inner = next((part for part in _parts(owner) if _is_model(part)), model)
        known = [*keys(inner), *(also if len(place) == 1 else ())]
        return Problem(place, f"unknown key{suggest(str(detail['loc'][-1]), known)}", value, True)
    if kind == "missing":
        return Problem(tuple(str(part) for part in detail["loc"]), "is required, and missing")
    message = detail["msg"].removeprefix("Value error, ")
    message = message.replace("Input should be", "must be", 1)
    rest = detail["loc"][len(path) :]
    if not path:
        # a check of the whole model: its input contains all settings, secrets included
        return Problem(path, message)
    if not _is_type_error(detail):
        return Problem(path, message, value)
    annotation = field_at(model, path)
    # pydantic puts the name of a union's member before the path inside it
    members = [one for one in _parts(annotation) if one is not type(None)]
    if inside := rest[1:] if len(members) > 1 else rest:
        return Problem((*path, *map(str, inside)), message, value)
    return Problem(path, f"expected {describe(annotation)}", value)


def _is_type_error(detail: Any) -> bool:
    kind: str = detail["type"]
    return kind.endswith(("_type", "_parsing", "_from_float")) or kind in (
        "literal_error",
        "is_instance_of",
    )


def _declared(model: type[BaseModel], loc: Iterable[Any]) -> tuple[str, ...]:
    """The longest start of `loc` that names declared fields."""
    path: tuple[str, ...] = ()
    for part in loc:
        # a member of a union is named by its type
        if field_at(model, (*path, str(part))) is None or str(part) == "str" or "[" in str(part):
            break
        path = (*path, str(part))
    return path


def _parts(annotation: Any) -> list[Any]:
    if get_origin(annotation) in (Union, types.UnionType):
        return [inner for part in get_args(annotation) for inner in _parts(part)]
    return [annotation]


def _words(part: Any) -> str:
    origin = get_origin(part)
    if origin is Literal:
        return " or ".join(str(choice) for choice in get_args(part))
    if origin in (list, tuple, set):
        return f"a list of {_plural(get_args(part))}"
    if origin is dict:
        return "a mapping"
    if origin is not None and hasattr(part, "__metadata__"):
        return describe(get_args(part)[0])
    if _is_model(part):
        return "a mapping"
    return WORDS.get(part, getattr(part, "__name__", str(part)))


def _plural(arguments: tuple[Any, ...]) -> str:
    words = {int: "ints", float: "numbers", str: "texts", Path: "paths", dict: "mappings"}
    inner = arguments[0] if arguments else Any
    return words.get(get_origin(inner) or inner, "values")


def _is_model(part: Any) -> bool:
    return isinstance(part, type) and issubclass(part, BaseModel)


def each_model(value: Any, wanted: type[BaseModel]) -> Iterator[tuple[tuple[Any, ...], BaseModel]]:
    """Every instance of `wanted` inside a validated value, with its path."""
    if isinstance(value, wanted):
        yield (), value
        return
    match value:
        case BaseModel():
            children: Iterable[tuple[Any, Any]] = iter(value)
        case dict():
            children = value.items()
        case list() | tuple():
            children = enumerate(value)
        case _:
            return
    for key, child in children:
        for path, found in each_model(child, wanted):
            yield (key, *path), found
