"""ng_merge: merge outputs into one."""

import sys

from ..config.keys.analysis import MergeConfig
from . import entry

NAME = "ng_merge"


def main(argv: list[str] | None = None, name: str = NAME) -> None:
    arguments = sys.argv[1:] if argv is None else argv
    sys.exit(entry.guard(name, arguments, lambda: _merge(arguments)))


def _merge(arguments: list[str]) -> int:
    command = entry.parse_files(arguments, MergeConfig)
    from ..commands.merge import format_merge, merge  # not needed for --help

    found, status = merge(command)
    entry.show(found, format_merge, as_json=command.json_output)
    return status
