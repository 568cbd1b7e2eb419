"""The sources of values: YAML files, `env.yaml` and the command line, merged lowest first.

Mappings merge deeply, lists replace, and each leaf records its last source. Nothing is interpreted:
`${…}` and `???` are still text in the merged tree.
"""

import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from itertools import count, product
from pathlib import Path
from typing import Any

from ..errors import ConfigError, suggest
from ..serving import registry
from ..serving.nemo_gym import inheritance
from ..serving.nemo_gym.checkout import locate
from ..types import JsonObject
from . import interpolation
from .overrides import CONFIG_PATHS, Override
from .replaced import Exchanged, Replaced

COMMAND_LINE, PROGRAM = "command line", "the program"
ENV_FILE = "env.yaml"
CHECKOUT = "nemo_gym"
"""The key that names a checkout of NeMo Gym."""

MAX_BYTES = 500_000
"""Size of the largest YAML file; a larger one takes many seconds to parse."""

MAX_VALUES, MAX_DEPTH = 100_000, 60

FLOAT, TIMESTAMP = "tag:yaml.org,2002:float", "tag:yaml.org,2002:timestamp"

NUMBER = r"""^(?:
    [-+]?[0-9]+(?:_[0-9]+)*\.[0-9_]*(?:[eE][-+]?[0-9]+)?
    |[-+]?[0-9]+(?:_[0-9]+)*(?:[eE][-+]?[0-9]+)
    |\.[0-9]+(?:_[0-9]+)*(?:[eE][-+][0-9]+)?
    |[-+]?[0-9]+(?:_[0-9]+)*(?::[0-5]?[0-9])+\.[0-9_]*
    |[-+]?\.(?:inf|Inf|INF)
    |\.(?:nan|NaN|NAN))$"""


@dataclass(slots=True)
class Layer:
    """The content of one file, without its own `config_paths`."""

    origin: str
    tree: JsonObject


@dataclass(slots=True)
class Merged:
    """The merged layers; `origins` maps the dotted path of each leaf to its source."""

    tree: JsonObject = field(default_factory=dict)
    cwd: Path | None = None
    """The working folder, in which implementations are looked up."""
    origins: dict[str, str] = field(default_factory=dict)
    overridden: set[str] = field(default_factory=set)
    """Top-level keys of files that the command line has changed."""
    replaced: JsonObject = field(default_factory=dict)
    """Values of such keys that are gone."""
    beaten: dict[str, Replaced] = field(default_factory=dict)
    """Dotted path of a leaf → what `env.yaml` or the command line has replaced there."""
    exchanged: list[Exchanged] = field(default_factory=list)
    """Implementations of servers that a later source has replaced by others."""
    released: set[str] = field(default_factory=set)
    """Top-level keys that a `${…}` used which a later source has replaced."""

    def add(self, layer: Layer) -> None:
        """Merge a layer over the earlier ones."""
        self._merge_blocks(self._write_out(layer.tree), layer.origin)

    def _merge_blocks(self, tree: JsonObject, origin: str) -> None:
        self._exchange(tree, origin)
        self._merge(self.tree, tree, origin, ())

    def replace_servers(self, values: JsonObject, made: Iterable[str]) -> None:
        """Add what a program gives: each of its servers replaces the files' one of that name."""
        blocks = [name for name, one in values.items() if isinstance(one, dict)]
        for name in (*made, *(each for each in blocks if {*values[each]} & {*registry.TYPES})):
            self.tree.pop(name, None)
            self._forget((name,))
        self.add(Layer(PROGRAM, values))

    def apply(self, override: Override) -> None:
        if override.delete:
            self._remove(override)
            return
        if (name := override.path[0]) in self.tree:
            self.overridden.add(name)
            if len(override.path) == 1 and not isinstance(override.value, dict):
                self.replaced[name] = self.tree[name]
        node: Any = self.tree
        for depth, key in enumerate(override.path):
            child = node.get(key) if isinstance(node, dict) else None
            if isinstance(child, list) and depth + 1 < len(override.path):
                _put_into_list(child, override.path[depth + 1 :], override)
                self._record((), COMMAND_LINE, override.path[: depth + 1])
                return
            node = child
        value: Any = override.value
        for key in reversed(override.path):
            value = {key: value}
        self._merge_blocks(value, COMMAND_LINE)

    def inherit(self) -> None:
        """Apply NeMo Gym's directives. What they bring comes from the file that has them."""
        before = Merged(origins=dict(self.origins))
        for path in inheritance.expand(self.tree):
            value: Any = self.tree
            for key in path:
                value = value.get(key) if isinstance(value, dict) else None
            self._record(value, before.origin(*path), path)

    def origin(self, *path: Any) -> str:
        """The source of the value at `path`: of the leaf, of an enclosing value, or of the first
        leaf inside."""
        parts = [str(part) for part in path]
        for end in range(len(parts), 0, -1):
            if found := self.origins.get(".".join(parts[:end])):
                return found
        inside = f"{'.'.join(parts)}."
        return next((who for leaf, who in self.origins.items() if leaf.startswith(inside)), "")

    def set_by(self, key: str, origin: str) -> bool:
        """Whether `origin` set anything at or below a top-level key."""
        return any(
            who == origin and (leaf == key or leaf.startswith(f"{key}."))
            for leaf, who in self.origins.items()
        )

    def find_source(self, path: tuple[str, ...], seen: frozenset[str] = frozenset()) -> str:
        """Where the value at `path` comes from, also if the text there is a `${…}`."""
        value: Any = self.tree
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        if not isinstance(value, str):
            return self.origin(*path)
        names = [name for name in interpolation.find_names(value, path) if name not in seen]
        given = [name for name in names if name in self.tree]
        if given:
            return self.find_source((given[0],), seen | {given[0]})
        if set_ := [name for name in interpolation.find_variables(value) if name in os.environ]:
            return f"the environment variable {set_[0]}"
        return self.origin(*path)

    def _write_out(self, tree: JsonObject) -> JsonObject:
        """The layer, where a server that has the name of its implementation is written without its
        type in one file and with it in another: both with it from now on."""
        for name, block in tree.items():
            old = self.tree.get(name)
            if not isinstance(old, dict) or not isinstance(block, dict):
                continue
            named = [kind for kind in registry.TYPES if (kind in old) != (kind in block)]
            if len(named) != 1 or registry.find(named[0], name, self.cwd) is None:
                continue
            [kind] = named
            if kind in old:
                tree = {**tree, name: {kind: {name: block}}}
            else:
                self.tree[name] = {kind: {name: old}}
                inside, written = f"{name}.", f"{name}.{kind}.{name}."
                for at in [at for at in self.origins if at.startswith(inside)]:
                    self.origins[written + at.removeprefix(inside)] = self.origins.pop(at)
        return tree

    def _exchange(self, tree: JsonObject, origin: str) -> None:
        """Remove each implementation of a server for which `tree` has another one."""
        for name, type_ in product(tree, registry.TYPES):
            old = _only_implementation(self.tree.get(name), type_)
            new = _only_implementation(tree[name], type_)
            if old is None or new is None or old == new:
                continue
            was = self.origin(name, type_, old)
            self.exchanged.append(Exchanged(name, old, was, new, origin))
            self.released |= {*interpolation.users(self.tree[name].pop(type_))}
            self._forget((name, type_))
            gone = f"{name}.{type_}."
            self.beaten = {at: it for at, it in self.beaten.items() if not at.startswith(gone)}

    def _merge(self, into: JsonObject, over: JsonObject, origin: str, prefix: tuple) -> None:
        for key, value in over.items():
            path = (*prefix, key)
            if isinstance(value, dict) and isinstance(into.get(key), dict):
                if value:
                    self.origins.pop(".".join(path), None)
                self._merge(into[key], value, origin, path)
            else:
                self._note_beaten(into.get(key), value, origin, ".".join(path))
                self.released |= {*interpolation.users({key: into.get(key)})}
                into[key] = deepcopy(value)
                self._record(value, origin, path)

    def _note_beaten(self, old: Any, new: Any, origin: str, place: str) -> None:
        before = self.origins.get(place, "")
        if old not in (None, "???", new) and before != origin in (ENV_FILE, COMMAND_LINE):
            self.beaten[place] = Replaced(place, old, before, origin)

    def find_beaten(self) -> dict[str, Replaced]:
        """The same with the leaves that take such a value by `${…}`."""
        found, users = dict(self.beaten), interpolation.users(self.tree)
        left = list(found)
        while left:
            name = left.pop()
            for path in users.get(name, ()):
                if (place := ".".join(path)) not in found:
                    found[place] = found[name]
                    left.append(place)
        return found

    def _record(self, value: Any, origin: str, path: tuple[str, ...]) -> None:
        self._forget(path)
        for leaf in _leaves(value, path):
            self.origins[".".join(leaf)] = origin

    def _forget(self, path: tuple[str, ...]) -> None:
        place = ".".join(path)
        for leaf in [
            leaf for leaf in self.origins if leaf == place or leaf.startswith(f"{place}.")
        ]:
            del self.origins[leaf]

    def _remove(self, override: Override) -> None:
        node: Any = self.tree
        for key in override.path[:-1]:
            node = node.get(key) if isinstance(node, dict) else None
        last = override.path[-1]
        if not isinstance(node, dict) or last not in node:
            known = node if isinstance(node, dict) else ()
            raise ConfigError(
                f"{override.text}: there is no '{override.key}'{suggest(last, known)}"
            )
        del node[last]
        self._forget(override.path)


def read_layers(
    paths: Sequence[str], cwd: Path, checkout: str | None = None, asked_by: str = COMMAND_LINE
) -> list[Layer]:
    """The files in `paths`, each after the files that it includes, then `env.yaml`; each once.
    They are looked up in a checkout of NeMo Gym too."""
    env_file = cwd / ENV_FILE
    env = _read(env_file, ENV_FILE) if os.path.lexists(env_file) else {}
    files = _Files(cwd, locate(checkout or env.get(CHECKOUT), cwd))
    for path in _own_paths(env, ENV_FILE):
        files.collect(path, ENV_FILE)
    for path in paths:
        files.collect(path, asked_by)
    if os.path.realpath(env_file) not in files.seen:
        files.layers.append(Layer(ENV_FILE, env))
    return files.layers


@dataclass(slots=True)
class _Files:
    """The files that were read."""

    cwd: Path
    checkout: Path | None
    seen: set[str] = field(default_factory=set)
    layers: list[Layer] = field(default_factory=list)

    def collect(self, path: str, asked_by: str, beside: Path | None = None) -> None:
        """Read a file and those that it includes. `beside` is the file that asks for it: what a
        file of the checkout includes is looked for there first."""
        found = self._in_checkout(path, beside)
        found = found or registry.resolve_path(path, self.cwd, self.checkout)
        if found is None:
            looked = registry.places(path, self.cwd, self.checkout)
            raise ConfigError(_not_found(path, asked_by, looked))
        if (real := os.path.realpath(found)) in self.seen:
            return
        self.seen.add(real)
        tree = _read(found, path)
        for own in _own_paths(tree, path):
            self.collect(own, path, found)
        self.layers.append(Layer(path, tree))

    def _in_checkout(self, path: str, beside: Path | None) -> Path | None:
        if self.checkout is None or beside is None or Path(path).is_absolute():
            return None
        is_of_checkout = beside.resolve().is_relative_to(self.checkout.resolve())
        place = self.checkout / path
        return place if is_of_checkout and place.exists() else None


def _only_implementation(block: Any, type_: str) -> str | None:
    """The name of the implementation in a server's block; None if it does not have exactly one."""
    named = block.get(type_) if isinstance(block, dict) else None
    if not isinstance(named, dict) or len(named) != 1:
        return None
    [(name, settings)] = named.items()
    return name if isinstance(settings, dict | None) else None


def _own_paths(tree: JsonObject, origin: str) -> list[str]:
    paths = tree.pop(CONFIG_PATHS, None) or []
    if isinstance(paths, str):
        return [paths]
    if isinstance(paths, list) and all(isinstance(path, str) for path in paths):
        return paths
    raise ConfigError(f"{origin}: {CONFIG_PATHS} must be a list of paths, got {paths!r}")


def _not_found(path: str, asked_by: str, places: list[Path]) -> str:
    siblings = {
        str(Path(path).parent / sibling.name): sibling
        for place in places
        for sibling in sorted(place.parent.glob("*.y*ml"))
    }
    close = get_close_matches(path, siblings, n=1, cutoff=0.6)
    hint = f" (did you mean '{close[0]}'?)" if close else ""
    looked = "".join(f"\n  {place}" for place in places)
    who = "the command line" if asked_by == COMMAND_LINE else asked_by
    return f"{path}: no such file, asked for by {who}{hint}; looked for{looked}"


def _read(path: Path, origin: str) -> JsonObject:
    import yaml

    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(f"{origin}: is no regular file")
        if (size := status.st_size) > MAX_BYTES:
            raise ConfigError(
                f"{origin}: {size:,} bytes are no configuration; at most {MAX_BYTES:,}"
            )
        with path.open(encoding="utf-8") as file:
            tree = yaml.load(file, Loader=_yaml_loader())
    except RecursionError:
        raise ConfigError(f"{origin}: is nested too deep") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        reason = ", ".join(part for part in (error.problem, error.context) if part)
        raise ConfigError(f"{origin}{where}: {reason}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{origin}: not readable as YAML: {error}") from None
    except OSError as error:
        raise ConfigError(f"{origin}: cannot be read: {error.strerror}") from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(
            f"{origin}: the top level must be a mapping (key: value), "
            f"not a {'list' if isinstance(tree, list) else 'single value'}"
        )
    return _as_json(tree, origin, (), count())


@cache
def _yaml_loader() -> Any:
    """OmegaConf's loader, without an import of OmegaConf: 1e-5 is a float, 2024-01-01 is text,
    duplicate keys are refused."""
    import yaml

    text = yaml.resolver.BaseResolver.DEFAULT_SCALAR_TAG

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            seen: set[str] = set()
            for key in (key for key, _ in node.value if key.tag == text):
                if key.value in seen:
                    reason = f"found duplicate key {key.value}"
                    raise yaml.constructor.ConstructorError(
                        "while constructing a mapping", node.start_mark, reason, key.start_mark
                    )
                seen.add(key.value)
            return super().construct_mapping(node, deep=deep)

    Loader.add_implicit_resolver(FLOAT, re.compile(NUMBER, re.VERBOSE), list("-+0123456789."))
    Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != TIMESTAMP]
        for first, resolvers in Loader.yaml_implicit_resolvers.items()
    }
    return Loader


def _as_json(value: Any, origin: str, path: tuple[str, ...], values: Iterator[int]) -> Any:
    if next(values) > MAX_VALUES:
        raise ConfigError(f"{origin}: its aliases (&…, *…) stand for over {MAX_VALUES:,} values")
    if len(path) > MAX_DEPTH:
        raise ConfigError(f"{origin}: {'.'.join(path[:3])}… is nested over {MAX_DEPTH} deep")
    if isinstance(value, dict):
        return {
            _key(key): _as_json(item, origin, (*path, _key(key)), values)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_as_json(item, origin, (*path, str(i)), values) for i, item in enumerate(value)]
    if value is None or isinstance(value, str | int | float):
        return value
    raise ConfigError(f"{origin}: {'.'.join(path)}: a {type(value).__name__} has no place in JSON")


def _key(key: Any) -> str:
    """A YAML key as a JSON key: `1:` and `true:` become text."""
    return str(key).lower() if key is None or isinstance(key, bool) else str(key)


def _leaves(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    if isinstance(value, dict) and value:
        for key, child in value.items():
            yield from _leaves(child, (*path, str(key)))
    else:
        yield path


def _put_into_list(items: list[Any], path: tuple[str, ...], override: Override) -> None:
    node: Any = items
    for depth, key in enumerate(path):
        last = depth + 1 == len(path)
        if isinstance(node, list):
            if not key.isdecimal() or int(key) >= len(node):
                raise ConfigError(
                    f"{override.text}: '{key}' is not a position in a list of {len(node)}"
                )
            place: Any = int(key)
        elif isinstance(node, dict):
            place = key
            if not last:
                node.setdefault(key, {})
        else:
            raise ConfigError(f"{override.text}: nothing can be set inside {node!r}")
        if last:
            node[place] = override.value
        else:
            node = node[place]
