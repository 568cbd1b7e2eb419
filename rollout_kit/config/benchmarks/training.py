"""Datasets to train on by name: `+dataset=NAME` becomes `+benchmark=dataset:NAME` when a command is
read, so that all that a benchmark can do holds for them, too.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import ConfigError, suggest
from ...types import JsonObject
from .. import overrides
from .definition import TRAINING, find_place, list_definitions, read_definition

DATASET, BENCHMARK = "dataset", "benchmark"


def name_as_benchmark(
    words: Sequence[str], cwd: Path | None = None, *, is_only: bool = False
) -> list[str]:
    """The words, with a dataset that has a definition as a benchmark. `is_only`: the command takes
    no other datasets, so that ConfigError names those there are."""
    named = overrides.text_of(words, DATASET)
    if named and is_only:
        read_definition(TRAINING + named, cwd)
    if not is_defined(named, cwd):
        return list(words)
    if overrides.text_of(words, BENCHMARK):
        raise _refuse_both()
    word = f"+{BENCHMARK}={TRAINING}{named}"
    return [word if overrides.key_of(each) == DATASET else each for each in words]


def with_benchmark(values: Mapping[str, Any], cwd: Path | None = None) -> JsonObject:
    """The keys of a program, with a dataset that has a definition as a benchmark."""
    named = values.get(DATASET)
    if not is_defined(named, cwd):
        return {**values}
    if values.get(BENCHMARK):
        raise _refuse_both()
    others = {name: value for name, value in values.items() if name != DATASET}
    return {**others, BENCHMARK: f"{TRAINING}{named}"}


def is_defined(named: Any, cwd: Path | None = None) -> bool:
    """Whether a dataset is one of ours, and not one that an agent lists."""
    if not isinstance(named, str) or not named:
        return False
    return named.endswith(".yaml") or find_place(TRAINING + named, cwd) is not None


def check_name(named: Any, cwd: Path) -> None:
    """ConfigError if a dataset, which nothing lists, is almost one of ours."""
    if isinstance(named, str) and suggest(named, list_definitions(cwd, DATASET)):
        read_definition(TRAINING + named, cwd)


def _refuse_both() -> ConfigError:
    return ConfigError("dataset and benchmark were both given: each brings its rows: name one")
