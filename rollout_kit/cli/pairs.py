"""ng_pairs: write preference pairs of stored rollouts."""

import sys

from ..config.keys.analysis import PairsConfig
from . import entry

NAME = "ng_pairs"


def main(argv: list[str] | None = None) -> None:
    arguments = sys.argv[1:] if argv is None else argv
    sys.exit(entry.guard(NAME, arguments, lambda: _write(arguments)))


def _write(arguments: list[str]) -> int:
    command = entry.parse_files(arguments, PairsConfig)
    from ..commands.export import export_pairs  # not needed for --help
    from ..export.report import format_report

    entry.show(export_pairs(command), format_report, as_json=command.json_output)
    return 0
