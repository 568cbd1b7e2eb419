"""ng_report: write a page with figures and plots of rollouts."""

import sys

from ..config.keys.analysis import ReportConfig
from . import entry

NAME = "ng_report"


def main(argv: list[str] | None = None) -> None:
    arguments = sys.argv[1:] if argv is None else argv
    sys.exit(entry.guard(NAME, arguments, lambda: _report(arguments)))


def _report(arguments: list[str]) -> int:
    command = entry.parse_files(arguments, ReportConfig)
    from ..view.report import write_report  # not needed for --help

    print(write_report(command))
    return 0
