"""ng_prepare_data: turn the datasets that agents list into checked task files."""

import json
import sys
from pathlib import Path

from ..collecting.data.benchmarks.prepared import prepare_rows
from ..collecting.data.prepare import prepare, prepare_benchmark
from ..collecting.data.summary import format_summaries
from ..config.benchmarks.asked import THEIRS, find_checkout, is_theirs
from ..config.benchmarks.training import name_as_benchmark
from ..config.keys import PrepareDataConfig
from ..config.overrides import text_of
from ..errors import ConfigError
from ..serving.nemo_gym.benchmarks import config_of
from . import entry

ROWS_LEFT_OUT = 2


def main(words: list[str]) -> int:
    words = name_as_benchmark(words, is_only=True)
    named, checkout = text_of(words, "benchmark"), text_of(words, "nemo_gym")
    if named and not is_theirs(named, checkout, Path.cwd()):
        entry.parse_keys(words, PrepareDataConfig)
        prepare_rows(named, lambda text, **_: print(text, file=sys.stderr, flush=True))
        return 0
    named = named and named.removeprefix(THEIRS)
    root = find_checkout(checkout, Path.cwd()) if named else None
    benchmark = [f"+config_paths=[{config_of(named, root)}]"] if named else []
    config = entry.load([*words, *benchmark], PrepareDataConfig)

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    if config.command.benchmark:
        prepare_benchmark(config, say)
        if config.command.output_dirpath is None:
            return 0
    elif config.command.output_dirpath is None:
        raise ConfigError("output_dirpath: is required, and missing: +output_dirpath=…")
    files = prepare(config, say)
    if config.command.json_output:
        print(json.dumps(files, ensure_ascii=False))
    else:
        print("\n".join(format_summaries(files)))
        print(f"Details: {config.command.output_dirpath / 'summary.json'}")
    return ROWS_LEFT_OUT if any(each["left_out"] for each in files.values()) else 0
