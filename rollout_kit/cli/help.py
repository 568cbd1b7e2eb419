"""ng_help: list the commands."""

import json

from ..config.keys.commands import COMMANDS, InspectConfig
from . import entry
from .table import print_table


@entry.command("ng_help")
def main(words: list[str]) -> int:
    if entry.parse_keys(words, InspectConfig).json_output:
        print(json.dumps({name: summary for name, (_, summary) in COMMANDS.items()}))
        return 0
    print_table([(name, summary) for name, (_, summary) in COMMANDS.items()])
    print("\nEach command has --help.")
    return 0
