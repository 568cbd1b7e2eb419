"""NeMo Gym's directives in YAML: `_inherit_from`, `_copy`, `_delete_key`, and the `${…}` forms.

They apply to the merged tree, after the command line, in the order of its keys, inner mappings
first. Sources are looked up in the tree as it was written; a source that is inherited from is
removed, one that is copied stays.
"""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from ...errors import ConfigError, suggest
from ...types import JsonObject

INHERIT, COPY, DELETE = "_inherit_from", "_copy", "_delete_key"

FORMS = ("${inherit_from:", "${copy:")

MISSING = "???"

MAX_CHAIN = 20
"""Sources that may inherit from each other; more of them form a circle."""


def expand(tree: JsonObject) -> Iterator[tuple[str, ...]]:
    """Apply every directive to `tree`; yields the path of each value that it replaces."""
    if _has_directives(tree):
        yield from _expand(tree, (), tree, deepcopy(tree), 0)


def _has_directives(value: Any) -> bool:
    if isinstance(value, dict):
        return not {INHERIT, COPY, DELETE}.isdisjoint(value) or any(
            map(_has_directives, value.values())
        )
    if isinstance(value, list):
        return any(map(_has_directives, value))
    return isinstance(value, str) and value.startswith(FORMS)


def _expand(
    node: JsonObject, path: tuple[str, ...], root: JsonObject, written: JsonObject, depth: int
) -> Iterator[tuple[str, ...]]:
    for key, value in list(node.items()):
        place = (*path, str(key))
        unwanted = _names(value.pop(DELETE, None), place) if isinstance(value, dict) else []
        later = [name for name in unwanted if name not in value]
        for name in unwanted:
            value.pop(name, None)
        for inner in value if isinstance(value, list) else [value]:
            if isinstance(inner, dict):
                yield from _expand(inner, place, root, written, depth)
        source, is_moved = _source(value)
        if not source:
            if later:
                raise ConfigError(_no_key(place, later[0], value))
            continue
        found = _find(written, source, place)
        if is_moved:
            _remove(root, source)
        found = _expand_source(found, place, written, depth)
        if isinstance(value, dict) and found != MISSING:
            if not isinstance(found, dict):
                raise ConfigError(f"{'.'.join(place)}: {source} is no mapping to inherit from")
            found = _merge(found, value)
        for name in later:
            if not isinstance(found, dict) or name not in found:
                raise ConfigError(_no_key(place, name, found))
            del found[name]
        node[key] = found
        yield place


def _expand_source(found: Any, place: tuple[str, ...], written: JsonObject, depth: int) -> Any:
    """A copy of a source, whose own directives are applied."""
    if depth > MAX_CHAIN:
        raise ConfigError(f"{'.'.join(place)}: inherits from itself")
    *path, key = place
    holder = {key: deepcopy(found)}
    for _ in _expand(holder, tuple(path), {}, written, depth + 1):
        pass
    return holder[key]


def _source(value: Any) -> tuple[str, bool]:
    """The path of a directive's source, removed from `value`, and whether the source moves."""
    if isinstance(value, dict):
        inherited, copied = value.pop(INHERIT, None), value.pop(COPY, None)
        return str(copied or inherited or ""), copied is None
    if isinstance(value, str):
        for form, is_moved in zip(FORMS, (True, False), strict=True):
            if value.startswith(form):
                return value.removeprefix(form).removesuffix("}").strip(), is_moved
    return "", False


def _find(written: JsonObject, source: str, place: tuple[str, ...]) -> Any:
    node: Any = written
    for name in source.split("."):
        if node == MISSING:
            return MISSING
        if not isinstance(node, dict) or name not in node:
            known = node if isinstance(node, dict) else ()
            raise ConfigError(
                f"{'.'.join(place)}: inherits from {source}, but there is no '{name}'"
                f"{suggest(name, known)}: add the file that has it to config_paths"
            )
        node = node[name]
    return node


def _remove(root: JsonObject, source: str) -> None:
    *parents, last = source.split(".")
    node: Any = root
    for name in parents:
        node = node.get(name) if isinstance(node, dict) else None
    if isinstance(node, dict):
        node.pop(last, None)  # another may have inherited from it before


def _merge(below: JsonObject, above: JsonObject) -> JsonObject:
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        both = isinstance(old, dict) and isinstance(value, dict)
        merged[key] = _merge(old, value) if both else value  # type: ignore[arg-type]
    return merged


def _names(given: Any, place: tuple[str, ...]) -> list[str]:
    if given is None:
        return []
    if not isinstance(given, str):
        raise ConfigError(f"{'.'.join(place)}.{DELETE}: names keys, as 'a, b'; got {given!r}")
    return [name.strip() for name in given.split(",")]


def _no_key(place: tuple[str, ...], name: str, node: Any) -> str:
    known = node if isinstance(node, dict) else ()
    return (
        f"{'.'.join(place)}: {DELETE} names '{name}', which is not there{suggest(name, known)}:"
        " add the file that has it to config_paths"
    )
