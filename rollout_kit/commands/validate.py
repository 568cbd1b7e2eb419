"""ng_validate: check the configuration without starting anything."""

import json
import sys
from collections.abc import Iterator, Sequence

from ..config import inspection
from ..config.instances import AGENTS, MODELS, Instance, references
from ..config.keys import ValidateConfig
from ..config.replaced import is_target
from ..errors import ConfigError
from ..secrets import mask
from ..serving.registry import resolve_path
from ..store.arms.read import read_arms
from . import entry
from .entry import print_table


def describe(instances: Sequence[Instance]) -> Iterator[str]:
    """A line for each agent and model: whom it asks, what, where, and with which datasets."""
    for one in instances:
        facts = []
        if one.type == AGENTS:
            facts = [f"asks {each.name}" for each in references(one.settings, None)]
            if names := [str(each.get("name")) for each in one.datasets]:
                facts.append(f"datasets {', '.join(names)}")
        elif one.type == MODELS:
            targets = {key: value for key, value in one.settings.items() if is_target(key)}
            facts = [f"{key} {value}" for key, value in targets.items() if value is not None]
        if facts:
            yield mask(f"{one.name}: {' · '.join(facts)}", one.secrets)


def main(words: list[str]) -> int:
    """Print one line per instance; raise ConfigError if the configuration is invalid."""
    config = entry.load(words, ValidateConfig)
    if not config.instances:
        raise ConfigError("no server is configured: give '+config_paths=[<file>.yaml]'")

    arms = [arm.id for arm in read_arms(config.command.arms, resolve_path)]
    instances = list(config.instances.values())
    if found := inspection.problems(instances):
        raise ConfigError("\n".join(found))
    warnings = inspection.warnings(instances)
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    if not any(one.type == AGENTS for one in instances):
        warnings.append("there is no agent, so nothing can be collected with this configuration")
        print(f"warning: {warnings[-1]}", file=sys.stderr)
    rows = [
        (one.name, one.type, one.implementation, one.placement or "default")
        for one in config.instances.values()
    ]
    if config.command.json_output:
        keys = ("name", "type", "implementation", "placement")
        listed = [dict(zip(keys, row, strict=True)) for row in rows]
        told = {"valid": True, "instances": listed, "warnings": warnings}
        print(json.dumps({**told, "arms": arms} if arms else told))
        return 0
    print_table(rows)
    for line in describe(instances):
        print(line)
    if arms:
        print(f"{len(arms)} arm{'s' * (len(arms) > 1)}: {', '.join(arms)}")
    print("configuration is valid")
    return 0
