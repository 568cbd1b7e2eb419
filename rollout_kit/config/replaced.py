"""Values that a later source gives in place of earlier ones, and where values come from."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

TARGETS = frozenset(("url", "endpoint", "model", "deployment"))
"""Words in the names of keys that decide which model is asked, and where."""

WIRING = ("model_server.name", "resources_server.name")


class Replaced(NamedTuple):
    """A value that does not count, the source that it is from, and what replaced it. `key` is the
    dotted path that both have."""

    key: str
    value: Any
    origin: str
    by: str


class Exchanged(NamedTuple):
    """A server's implementation that does not count, and the one that replaced it."""

    server: str
    old: str
    origin: str
    new: str
    by: str

    def __str__(self) -> str:
        now, before = name_source(self.by), name_source(self.origin)
        return f"{self.server} is {self.new} from {now}, instead of {self.old} from {before}"


class Targets(NamedTuple):
    """Where a server comes from. `keys` has the sources of those of its keys that say which model
    it asks, and where."""

    implementation: str
    source: str
    keys: Mapping[str, str]

    def __str__(self) -> str:
        by_source: dict[str, list[str]] = {}
        for key, source in self.keys.items():
            if source != self.source:
                by_source.setdefault(source, []).append(key)
        others = [f"its {' and '.join(keys)} from {by}" for by, keys in by_source.items()]
        return ", ".join([f"{self.implementation} from {self.source}", *others])


def is_target(key: str) -> bool:
    """Whether a server's key, or the last part of its dotted path, says which model it asks, or
    where."""
    return not TARGETS.isdisjoint(key.rpartition(".")[2].split("_"))


def name_source(origin: str) -> str:
    """A source as it stands in a sentence."""
    return f"the {origin}" if origin == "command line" else origin


def explain(replaced: Mapping[str, Replaced], instances: Collection[str]) -> Iterator[str]:
    """A clause for each value that decides which agent, model or endpoint these instances are, or
    use. `replaced` has the dotted path of each."""
    for place, (name, value, origin, by) in replaced.items():
        owner, _, key = place.partition(".")
        decides = owner in instances and (is_target(key) or key.endswith(WIRING))
        if decides or place == "agent_name":
            yield f"{name} is from {name_source(by)}, instead of {value} from {origin}"
