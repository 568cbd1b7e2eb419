"""ng_compare: compare files of rollouts task by task."""

from ..config.keys.analysis import CompareConfig
from . import entry


@entry.command("ng_compare")
def main(words: list[str]) -> int:
    command = entry.parse_files(words, CompareConfig)
    from ..analysis.comparison import (  # not needed for --help
        compare_files,
        format_comparison,
    )

    entry.show_of_files(command, compare_files(command), format_comparison)
    return 0
