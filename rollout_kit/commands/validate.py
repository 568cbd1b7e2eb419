"""ng_validate: check the configuration without starting anything."""

import json
import sys

from ..config import inspection
from ..config.keys import ValidateConfig
from ..errors import ConfigError
from ..serving.registry import resolve_path
from ..store.arms.read import read_arms
from . import entry
from .entry import print_table


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
    if arms:
        print(f"{len(arms)} arm{'s' * (len(arms) > 1)}: {', '.join(arms)}")
    print("configuration is valid")
    return 0
