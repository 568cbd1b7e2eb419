"""Resolve `${a.b}`, `${oc.env:VAR,default}` and `???` with OmegaConf.

Values that cannot be resolved stay as written and are reported with their path. The caller decides
whether that is an error, because it knows which values the command uses.
"""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from ..errors import ConfigError
from ..types import JsonObject

MAX_DEPTH = 60
"""Depth at which a mapping is regarded as containing itself through `${…}`."""

SLIP = 0.8
"""Similarity at which a name is regarded as misspelled. `policy_base_url` and `policy_api_key` are
less similar."""

WHOLE = re.compile(r"\$\{([A-Za-z_]\w*)\}", re.ASCII)
NAME = re.compile(r"\$\{\s*(?P<dots>\.*)\[?(?P<name>[^\s.:,\[\]{}$]+)(?![^\s.:,\[\]{}$])")
RESOLVER = re.compile(r"\$\{\s*[\w.]+\s*:")
VARIABLE = re.compile(r"\$\{\s*oc\.env\s*:\s*(\w+)")
SELECTED = re.compile(r"\$\{\s*oc\.(?:select|dict\.keys|dict\.values)\s*:\s*(?P<name>\w+)")


@dataclass(slots=True)
class Unresolved:
    """A leaf at `path` without a value, and why; `target` is the key that would provide one."""

    path: tuple[str, ...]
    reason: str
    target: str = ""


@dataclass(slots=True)
class Resolved:
    values: JsonObject
    unresolved: list[Unresolved] = field(default_factory=list)

    def under(self, key: str) -> list[Unresolved]:
        return [one for one in self.unresolved if one.path[0] == key]


def users(tree: JsonObject) -> dict[str, list[tuple[str, ...]]]:
    """Each top-level name that a `${…}` uses, with the paths of its users."""
    found: dict[str, list[tuple[str, ...]]] = {}
    for path, text in _texts(tree, ()):
        for name in find_names(text, path):
            found.setdefault(name, []).append(path)
    return found


def variables(tree: JsonObject) -> dict[str, str]:
    """The environment variables that a `${oc.env:…}` uses, with their values."""
    names = {name for _, text in _texts(tree, ()) for name in find_variables(text)}
    return {name: os.environ.get(name, "") for name in names}


def find_variables(text: str) -> list[str]:
    """The environment variables that the `${oc.env:…}` of a text use."""
    return VARIABLE.findall(text)


def resolve(tree: JsonObject) -> Resolved:
    """All values with interpolations replaced, and the unresolved ones; ConfigError for a `${`
    without a closing brace."""
    with suppress(LookupError, RecursionError):
        return Resolved(_replace(tree, tree, 0))
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        root = OmegaConf.create(tree)
    except OmegaConfBaseException as error:
        place = getattr(error, "full_key", "") or ""
        reason = f"{place}: not a valid ${{…}}: {str(error).splitlines()[0]}"
        raise ConfigError(f"{reason} (write \\${{ for the two characters themselves)") from None
    resolved = Resolved({})
    resolved.values = _walk(root, (), resolved, tree)
    return resolved


def _replace(value: Any, tree: JsonObject, depth: int) -> Any:
    """The value with each `${name}` replaced, without OmegaConf, whose import takes longer than all
    else here; LookupError if it needs more than values at the top that are no containers."""
    if isinstance(value, dict | list):
        if depth > MAX_DEPTH:
            raise LookupError
        if isinstance(value, list):
            return [_replace(item, tree, depth + 1) for item in value]
        return {key: _replace(item, tree, depth + 1) for key, item in value.items()}
    if isinstance(value, str) and ("${" in value or value == "???"):
        found = tree[match[1]] if (match := WHOLE.fullmatch(value)) else [...]
        if isinstance(found, dict | list):
            raise LookupError
        return _replace(found, tree, depth)
    return value


def messages(unresolved: list[Unresolved], known: JsonObject) -> list[str]:
    """One line per missing key, with all its users, and one per other reason.

    `known` is the tree as written, in which a target may itself be a `${…}`.
    """
    needed: dict[str, list[str]] = {}
    lines = []
    for one in unresolved:
        if one.target:
            needed.setdefault(_end_of_chain(one.target, known), []).append(".".join(one.path))
        else:
            lines.append(f"{'.'.join(one.path)}: {one.reason}")
    for target, places in needed.items():
        how = f"give +{target}=<value> or put it in env.yaml"
        if places == [target]:
            lines.append(f"{target} is mandatory (???) and has no value: {how}")
        else:
            scalars = [key for key, value in known.items() if not isinstance(value, dict | list)]
            close = get_close_matches(target, scalars, n=1, cutoff=SLIP)
            hint = f" (did you mean '{close[0]}'?)" if close and target not in known else ""
            used = ", ".join(place for place in places if place != target)
            lines.append(f"${{{target}}} has no value{hint}, and {used} needs it: {how}")
    return lines


def _end_of_chain(target: str, tree: JsonObject) -> str:
    for _ in range(MAX_DEPTH):
        match = re.fullmatch(r"\$\{\s*([\w.\-]+)\s*\}", str(tree.get(target)))
        if match is None:
            break
        target = match[1]
    return target


def _walk(node: Any, path: tuple[str, ...], resolved: Resolved, raw: Any) -> Any:
    from omegaconf import DictConfig, ListConfig, OmegaConf
    from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

    is_mapping = isinstance(node, DictConfig)
    keys: list[Any] = list(node.keys()) if is_mapping else list(range(len(node)))
    found: dict[Any, Any] = {}
    for key in keys:
        place = (*path, str(key))
        raw_child = raw[key] if raw is not None else None
        try:
            value = node[key]
            if isinstance(value, DictConfig | ListConfig):
                if len(place) > MAX_DEPTH:
                    raise RecursionError
                inner = raw_child if isinstance(raw_child, dict | list) else None
                if inner is None:
                    inner = OmegaConf.to_container(value, resolve=False)
                value = _walk(value, place, resolved, inner)
            found[key] = value
        except MissingMandatoryValue:
            resolved.unresolved.append(Unresolved(place, "is mandatory", ".".join(place)))
            found[key] = raw_child
        except RecursionError:
            if len(place) > 1:
                raise
            resolved.unresolved.append(Unresolved(place, "contains itself through ${…}"))
            found[key] = raw_child
        except OmegaConfBaseException as error:
            resolved.unresolved.append(_unresolved(place, raw_child, error))
            found[key] = raw_child
    return found if is_mapping else list(found.values())


def _unresolved(path: tuple[str, ...], raw: Any, error: Exception) -> Unresolved:
    reason = str(error).splitlines()[0]
    if match := re.search(r"Interpolation key '([^']+)' not found", reason):
        return Unresolved(path, reason, match[1])
    if "MissingMandatoryValue" in reason or "missing" in type(error).__name__.lower():
        match = re.search(r"\$\{\s*([\w.\-]+)\s*\}", str(raw))
        return Unresolved(path, reason, match[1] if match else "")
    if match := re.search(r"Environment variable '([^']+)' not found", reason):
        name = match[1]
        how = (
            f"set the environment variable {name}, or give a default: ${{oc.env:{name},<default>}}"
        )
        if raw == f"${{{name}}}":  # the key's default is the environment variable of its name
            how = f"put {name} into env.yaml, or set the environment variable"
        return Unresolved(path, f"{raw} has no value: {how}")
    return Unresolved(path, f"{raw} cannot be resolved: {reason}")


def _texts(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    if isinstance(value, dict):
        for key, child in value.items():
            yield from _texts(child, (*path, str(key)))
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from _texts(child, (*path, str(index)))
    elif isinstance(value, str) and "${" in value:
        yield path, value


def find_names(text: str, path: tuple[str, ...]) -> Iterator[str]:
    """The top-level names that the `${…}` of a text at `path` use."""
    for match in NAME.finditer(text):
        if RESOLVER.match(text, match.start()):
            continue
        # `${.a}` is a sibling, `${..a}` the parent's sibling
        above = path[: -len(match["dots"])] if match["dots"] else ()
        yield above[0] if above else match["name"]
    for match in SELECTED.finditer(text):
        yield match["name"]
