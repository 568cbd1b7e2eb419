"""ng_help: the list of commands."""

import json
import sys

from ..config.keys.commands import COMMANDS, InspectConfig
from .entry import flags, guarded


def main(argv: list[str] | None = None) -> None:
    arguments = sys.argv[1:] if argv is None else argv
    sys.exit(guarded("ng_help", arguments, lambda: list_commands(arguments)))


def list_commands(arguments: list[str]) -> int:
    if flags(arguments, InspectConfig).json_output:
        print(json.dumps({name: summary for name, (_, summary) in COMMANDS.items()}))
        return 0
    width = max(map(len, COMMANDS))
    for name, (_, summary) in COMMANDS.items():
        print(f"{name.ljust(width)}  {summary}")
    print("\nEach takes --help.")
    return 0
