"""ng_help: list the commands."""

import json

from ..config.commands import COMMANDS
from ..config.keys import InspectConfig
from . import entry
from .entry import print_table


def main(words: list[str]) -> int:
    if entry.parse_keys(words, InspectConfig).json_output:
        print(json.dumps({name: each.summary for name, each in COMMANDS.items()}))
        return 0
    print_table([(name, each.summary) for name, each in COMMANDS.items()])
    print("\nEach command has --help.")
    return 0
