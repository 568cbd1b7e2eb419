"""ng_compare: compare files of rollouts task by task."""

import sys

from ..config.keys.analysis import CompareConfig
from . import entry

NAME = "ng_compare"


def main(argv: list[str] | None = None) -> None:
    arguments = sys.argv[1:] if argv is None else argv
    sys.exit(entry.guard(NAME, arguments, lambda: _compare(arguments)))


def _compare(arguments: list[str]) -> int:
    command = entry.parse_files(arguments, CompareConfig)
    from ..commands.compare import compare_files, format_comparison  # not needed for --help

    found = compare_files(command)
    entry.show(found, format_comparison, as_json=command.json_output)
    return 0
