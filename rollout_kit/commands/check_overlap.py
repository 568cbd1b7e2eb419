"""ng_check_overlap: find rows of benchmarks in rows to train on."""

import sys
from pathlib import Path

from ..analysis.overlap import check_overlap, format_overlap
from ..collecting.data.benchmarks.prepared import prepare_rows
from ..config.benchmarks.definition import TRAINING
from ..config.keys import CheckOverlapConfig
from ..errors import ConfigError
from ..store.files import write_atomically
from ..store.input import place_lines
from . import entry
from .entry import FAILED


def main(words: list[str]) -> int:
    """Exit code 1 if more rows of a benchmark than allowed were found."""
    command = entry.parse_plain(words, CheckOverlapConfig)
    files = {name: Path(name).expanduser() for name in command.inputs}
    named = [command.dataset] if isinstance(command.dataset, str) else command.dataset
    if not files and not named:
        raise ConfigError(
            "name a file to train on: ng_check_overlap train.jsonl +benchmark=gsm8k, or a dataset:"
            " +dataset=dapo_math_17k"
        )
    benchmarks = find_benchmarks(command)
    inputs = files | {name: prepare_rows(TRAINING + name, say) for name in named}
    found, held = check_overlap(inputs, benchmarks, command.min_share, command.num_examples)
    if command.clean_fpath is not None:
        write_clean(command.clean_fpath, list(inputs.values()), held)
    entry.show(found, format_overlap, as_json=command.json_output)
    most = command.max_overlap
    worst = max(each["share"]["value"] for each in found["benchmarks"].values())
    if most is None or worst <= most:
        return 0
    print(f"{worst:.1%} of a benchmark was found; allowed are {most:.1%}", file=sys.stderr)
    return FAILED


def say(text: str, **_: object) -> None:
    print(text, file=sys.stderr, flush=True)


def find_benchmarks(command: CheckOverlapConfig) -> dict[str, Path]:
    """Name → file of its rows; ConfigError if there is none."""
    named = [command.benchmark] if isinstance(command.benchmark, str) else command.benchmark
    files = [command.against] if isinstance(command.against, str) else command.against
    found = {name: prepare_rows(name, say) for name in named}
    found |= {name: Path(name).expanduser() for name in files}
    if not found:
        raise ConfigError("name a benchmark: +benchmark=[gsm8k,math_500], or +against=tasks.jsonl")
    return found


def write_clean(path: Path, inputs: list[Path], held: list[tuple[Path, int]]) -> None:
    """Write the rows without text of a benchmark."""
    if any(path.resolve() == each.resolve() for each in inputs):
        raise ConfigError(f"clean_fpath: {path} is an input: choose another name")
    left_out = set(held)
    write_atomically(
        path,
        (
            raw if raw.endswith(b"\n") else raw + b"\n"
            for each in inputs
            for number, _, raw in place_lines(each)
            if (each, number) not in left_out
        ),
    )
