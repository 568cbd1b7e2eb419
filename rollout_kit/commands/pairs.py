"""ng_pairs: write preference pairs of stored rollouts."""

from ..analysis.export.export_report import format_report
from ..config.keys import PairsConfig
from . import entry
from .export import export_pairs


def main(words: list[str]) -> int:
    command = entry.parse_files(words, PairsConfig)
    entry.show_of_files(command, export_pairs(command), format_report)
    return 0
