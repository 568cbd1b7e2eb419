"""ng_pairs: write preference pairs of stored rollouts."""

from ..config.keys.analysis import PairsConfig
from . import entry


@entry.command("ng_pairs")
def main(words: list[str]) -> int:
    command = entry.parse_files(words, PairsConfig)
    from ..commands.export import export_pairs  # not needed for --help
    from ..export.report import format_report

    entry.show(export_pairs(command), format_report, as_json=command.json_output)
    return 0
