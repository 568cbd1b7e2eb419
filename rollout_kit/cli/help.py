"""ng_help: list the commands."""

import json
import sys

from ..config.keys.commands import COMMANDS, InspectConfig
from .entry import guard, parse_keys


def main(argv: list[str] | None = None) -> None:
    arguments = sys.argv[1:] if argv is None else argv
    sys.exit(guard("ng_help", arguments, lambda: list_commands(arguments)))


def list_commands(arguments: list[str]) -> int:
    if parse_keys(arguments, InspectConfig).json_output:
        print(json.dumps({name: summary for name, (_, summary) in COMMANDS.items()}))
        return 0
    width = max(map(len, COMMANDS))
    for name, (_, summary) in COMMANDS.items():
        print(f"{name.ljust(width)}  {summary}")
    print("\nEach command has --help.")
    return 0
