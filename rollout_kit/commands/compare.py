"""ng_compare: compare files of rollouts task by task."""

from ..analysis.comparison import compare_files, format_comparison
from ..config.keys import CompareConfig
from . import entry


def main(words: list[str]) -> int:
    command = entry.parse_files(words, CompareConfig)
    entry.show_of_files(command, compare_files(command), format_comparison)
    return 0
