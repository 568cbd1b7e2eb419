"""ng_export: write stored rollouts in the format of a trainer."""

from ..config.keys.analysis import ExportConfig
from . import entry


@entry.command("ng_export")
def main(words: list[str]) -> int:
    command = entry.parse_files(words, ExportConfig)
    from ..analysis.export.report import format_report
    from ..commands.export import export  # not needed for --help

    entry.show_of_files(command, export(command), format_report)
    return 0
