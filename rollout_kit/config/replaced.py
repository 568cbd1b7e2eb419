"""Values that `env.yaml` or the command line gives in place of those of a file that was named."""

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


def explain(replaced: Mapping[str, Replaced], instances: Collection[str]) -> Iterator[str]:
    """A clause for each value that decides which agent, model or endpoint these instances are, or
    use. `replaced` has the dotted path of each."""
    for place, (name, value, origin, by) in replaced.items():
        owner, _, key = place.partition(".")
        is_target = not TARGETS.isdisjoint(key.rpartition(".")[2].split("_"))
        decides = owner in instances and (is_target or key.endswith(WIRING))
        if decides or place == "agent_name":
            source = by if by.endswith(".yaml") else f"the {by}"
            yield f"{name} is from {source}, instead of {value} from {origin}"
