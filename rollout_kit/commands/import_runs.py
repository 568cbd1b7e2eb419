"""Makes rollouts of the runs of other tools, and says what was found."""

from pathlib import Path

from ..config.keys import ImportConfig
from ..errors import ConfigError, OutputError
from ..formats.importing import Wish, format_import, import_runs
from ..formats.recognition import check_format
from ..types import JsonObject
from . import entry


def import_foreign(command: ImportConfig) -> JsonObject:
    """The report; ConfigError or OutputError if nothing can be written."""
    check_format(command.format)
    inputs = [Path(each).expanduser() for each in command.inputs]
    if command.input_path is not None:
        inputs.insert(0, command.input_path.expanduser())
    if not inputs:
        raise ConfigError("name what to read:  ng_import logs/ +output_jsonl_fpath=rollouts.jsonl")
    output = command.output_jsonl_fpath.expanduser()
    wish = Wish(command.format, command.reward_key, command.agent_name)
    try:
        found = import_runs(inputs, output, wish)
    except OSError as error:
        raise OutputError(f"cannot write {output}: {error.strerror or error}") from None
    return {**found.to_json(), "output": str(output)}


def main(words: list[str]) -> int:
    command = entry.parse_plain(words, ImportConfig)
    entry.show(import_foreign(command), format_import, as_json=command.json_output)
    return 0
