"""ng_report: write a page with figures and plots of rollouts."""

from ..analysis.report import write_report
from ..config.keys import ReportConfig
from . import entry


def main(words: list[str]) -> int:
    command = entry.parse_files(words, ReportConfig)
    print(write_report(command))
    return 0
