"""ng_merge: merge outputs into one."""

from ..config.keys.analysis import MergeConfig
from . import entry


def merge_outputs(words: list[str]) -> int:
    command = entry.parse_files(words, MergeConfig)
    from ..commands.merge import format_merge, merge  # not needed for --help

    found, status = merge(command)
    entry.show(found, format_merge, as_json=command.json_output)
    return status


main = entry.command("ng_merge")(merge_outputs)
