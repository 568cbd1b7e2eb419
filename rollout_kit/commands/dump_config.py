"""ng_dump_config: print the merged configuration, with origins and masked secrets."""

import json
from collections.abc import Iterator
from typing import Any

import yaml

from ..config.keys import InspectConfig
from ..secrets import mask
from . import entry


def main(words: list[str]) -> int:
    config = entry.load(words, InspectConfig)
    values = mask(config.values, config.secrets)
    if config.command.json_output:
        print(json.dumps({"values": values, "origins": config.origins}, ensure_ascii=False))
        return 0
    for line in format_lines(values, config.origins, ()):
        print(line)
    return 0


def format_lines(
    values: dict[str, Any], origins: dict[str, str], path: tuple[str, ...]
) -> Iterator[str]:
    """Format as YAML that parses to `values`, with origins as comments."""
    indent = "  " * len(path)
    for key, value in values.items():
        place = (*path, key)
        if isinstance(value, dict) and value:
            # a mapping from a `${…}` has one origin
            origin = origins.get(".".join(place))
            yield f"{indent}{_to_yaml(key)}:{f'  # {origin}' if origin else ''}"
            yield from format_lines(value, origins, place)
        else:
            origin = origins.get(".".join(place))
            yield f"{indent}{_to_yaml(key)}: {_to_yaml(value)}{f'  # {origin}' if origin else ''}"


def _to_yaml(value: Any) -> str:

    text = yaml.safe_dump(
        value, default_flow_style=True, width=float("inf"), allow_unicode=True, sort_keys=False
    )
    return text.removesuffix("\n").removesuffix("\n...")
