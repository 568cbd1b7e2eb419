"""ng_compare: compare files of rollouts task by task."""

from ..config.keys.analysis import CompareConfig
from . import entry


@entry.command("ng_compare")
def main(words: list[str]) -> int:
    command = entry.parse_files(words, CompareConfig)
    from ..commands.compare import compare_files, format_comparison  # not needed for --help

    found = compare_files(command)
    entry.show(found, format_comparison, as_json=command.json_output)
    return 0
