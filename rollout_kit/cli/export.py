"""ng_export: write stored rollouts in the format of a trainer."""

import sys

from ..config.keys.analysis import ExportConfig
from . import entry

NAME = "ng_export"


def main(argv: list[str] | None = None) -> None:
    arguments = sys.argv[1:] if argv is None else argv
    sys.exit(entry.guard(NAME, arguments, lambda: _write(arguments)))


def _write(arguments: list[str]) -> int:
    command = entry.parse_files(arguments, ExportConfig)
    from ..commands.export import export  # not needed for --help
    from ..export.report import format_report

    entry.show(export(command), format_report, as_json=command.json_output)
    return 0
