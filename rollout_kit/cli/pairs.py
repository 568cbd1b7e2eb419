"""ng_pairs: write preference pairs of stored rollouts."""

from ..config.keys.analysis import PairsConfig
from . import entry


@entry.command("ng_pairs")
def main(words: list[str]) -> int:
    command = entry.parse_files(words, PairsConfig)
    from ..analysis.export.report import format_report
    from ..commands.export import export_pairs  # not needed for --help

    entry.show_of_files(command, export_pairs(command), format_report)
    return 0
