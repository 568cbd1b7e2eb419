"""Which tool wrote a file, from what is in it, and the rollouts of that file.

Archives and files of lines are read piece by piece. A document is read as a whole, up to a bound.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import orjson

from ..errors import ConfigError, suggest
from ..reading import parse_line, read_whole
from ..store.input import number_lines
from ..types import JsonObject
from . import atif, gym_rollouts, harbor_jobs, inspect_logs, request_logs, verifiers_traces
from .archive import open_archive
from .foreign import Damaged, Foreign, read_safely

Read = Iterator[Foreign | Damaged]

FORMATS = {
    "inspect": "inspect's logs: .eval and .json",
    "atif": "trajectories of ATIF 1.0 to 1.8",
    "harbor": "Harbor's folders of jobs and trials",
    "verifiers": "verifiers' traces.jsonl and results.jsonl",
    "nemo_gym": "NeMo Gym's rollouts, 0.5 to 0.7",
    "openai": "requests and responses of Chat or Responses",
    "lm_eval": "lm-eval's samples_….jsonl",
}
"""Name of each format that is read → what it is."""

ReadRow = Callable[[JsonObject], Read]


def _one_of(read: Callable[[JsonObject], Foreign]) -> ReadRow:
    return lambda row: iter((read_safely(read, row),))


BY_LINE: dict[str, tuple[Callable[[JsonObject], bool], ReadRow]] = {
    "atif": (atif.is_document, _one_of(atif.read_document)),
    "verifiers": (verifiers_traces.is_line, verifiers_traces.read_line),
    "lm_eval": (request_logs.is_lm_eval, _one_of(request_logs.read_lm_eval)),
    "openai": (request_logs.is_openai, _one_of(request_logs.read_openai)),
}
"""Formats whose lines stand for themselves: whether a line is one, and its rollouts."""

NOT_KNOWN = "no run of another tool is recognised in it"

HOW_TO_NAME = f"These formats are read: {', '.join(FORMATS)}"


@dataclass(frozen=True, slots=True)
class ForeignSource:
    """A file, or a folder of a trial, of a known format."""

    path: Path
    format: str
    read: Callable[[], Read]


def check_format(name: str | None) -> None:
    """ConfigError for a format that is not read."""
    if name is not None and name not in FORMATS:
        raise ConfigError(f"format={name} is unknown{suggest(name, FORMATS)}: {', '.join(FORMATS)}")


def find_sources(path: Path) -> Iterator[ForeignSource | Path | Damaged]:
    """The sources in a file or in a folder, in the order of their names; a path for a file that is
    none, Damaged for one of a folder that cannot be read. ConfigError for a file that was named."""
    if not path.exists():
        raise ConfigError(f"{path}: there is no such file or folder")
    if path.is_dir() and harbor_jobs.is_trial(path):
        yield ForeignSource(path, harbor_jobs.NAME, partial(_read_trial, path))
    elif path.is_dir():
        for each in sorted(path.iterdir()):
            if each.is_symlink() and each.is_dir():
                continue  # a link to a folder above would never end
            try:
                yield from find_sources(each)
            except ConfigError as error:
                yield Damaged(str(error))
    else:
        yield recognise(path) or path


def _read_trial(folder: Path) -> Read:
    yield read_safely(harbor_jobs.read_trial, folder)


def recognise(path: Path) -> ForeignSource | None:
    """The file as a source; None if it is none, ConfigError if it is damaged."""
    try:
        with path.open("rb") as stream:
            begin = stream.read(4)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    if begin.startswith(b"PK"):
        with open_archive(path) as archive:
            if not inspect_logs.is_archive(frozenset(archive.namelist())):
                return None
        return ForeignSource(path, inspect_logs.NAME, partial(inspect_logs.read_archive, path))
    if path.suffix == ".json":
        return _recognise_document(path)
    if not {".jsonl", ".ndjson"} & set(path.suffixes):
        return None
    first = next(number_lines(path), None)
    return None if first is None else _recognise_line(path, parse_line(first[1]) or {})


def _recognise_document(path: Path) -> ForeignSource | None:
    raw = read_whole(path)
    try:
        document = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"{path}: is not JSON, or cut off: {error}") from None
    if not isinstance(document, dict):
        return None
    if inspect_logs.is_document(document):
        return ForeignSource(path, inspect_logs.NAME, partial(inspect_logs.read_document, document))
    for name, (is_one, read) in BY_LINE.items():
        if is_one(document):
            return ForeignSource(path, name, partial(read, document))
    return None


def _recognise_line(path: Path, row: JsonObject) -> ForeignSource | None:
    if "kind" in row and "rollout" in row:
        raise ConfigError(f"{path}: these are rollouts already: every command reads them")
    for name, (is_one, read) in BY_LINE.items():
        if is_one(row):
            return ForeignSource(path, name, partial(_read_lines, path, read))
    if gym_rollouts.is_line(row):
        return ForeignSource(path, gym_rollouts.NAME, partial(_read_gym, path))
    return None


def _read_gym(path: Path) -> Read:
    tasks = gym_rollouts.tasks_beside(path)
    return _read_lines(path, _one_of(lambda row: gym_rollouts.read_line(row, tasks)))


def _read_lines(path: Path, read: ReadRow) -> Read:
    for _, raw in number_lines(path):
        row = parse_line(raw)
        if row is None:
            yield Damaged("no JSON object" if raw.endswith(b"\n") else "a line that is cut off")
        else:
            yield from read(row)
