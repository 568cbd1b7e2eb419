"""Reads what an export is made of: files of rollouts, or of the grouped view."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from ..api.load import load
from ..errors import ConfigError
from ..store.compact import Keys
from ..store.input import number_lines
from ..store.scan import parse_line
from ..types import Rollout
from .grouped import is_group, read_group


def read_rollouts(paths: Sequence[str]) -> Iterator[Rollout]:
    """Every rollout of the files, each key once; ConfigError if a file cannot be read."""
    if not paths:
        raise ConfigError("name one or more files of rollouts")
    files = [Path(path).expanduser() for path in paths]
    grouped = [_is_grouped(path) for path in files]
    if not any(grouped):
        yield from load(*files)
        return
    seen = Keys()
    for path, has_groups in zip(files, grouped, strict=True):
        for rollout in _read_groups(path) if has_groups else load(path):
            if seen.add(rollout.key):
                yield rollout


def _is_grouped(path: Path) -> bool:
    for _, raw in number_lines(path):
        return is_group(parse_line(raw))
    return False


def _read_groups(path: Path) -> Iterator[Rollout]:
    for position, (number, raw) in enumerate(number_lines(path)):
        line = parse_line(raw)
        if line is None or not is_group(line):
            raise ConfigError(f"{path}:{number}: not a line of grouped answers")
        try:
            yield from read_group(line, position)
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{path}:{number}: {error}") from None
