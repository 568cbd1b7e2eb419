"""ng_report: write a page with figures and plots of rollouts."""

from ..config.keys.analysis import ReportConfig
from . import entry


@entry.command("ng_report")
def main(words: list[str]) -> int:
    command = entry.parse_files(words, ReportConfig)
    from ..analysis.view.report import write_report  # not needed for --help

    print(write_report(command))
    return 0
