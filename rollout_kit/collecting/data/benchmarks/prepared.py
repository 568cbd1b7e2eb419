"""The rows of a benchmark as tasks in a file of the cache, made on first use."""

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson
from pydantic import ValidationError

from ....config.benchmarks.definition import HARBOR, Definition, Range, read_definition, rows_file
from ....config.fields import problems
from ....errors import ConfigError, number_of, suggest
from ....store.files import write_json
from ....types import JsonObject, Say
from ..mapping import Mapping, get_shape
from ..row_texts import RowTexts
from .origins import LocalFile, parse_origin, read_local, read_origin, write_rows
from .row_readers import JOINS, READERS, Reader
from .shots import Shots


@dataclass(frozen=True, slots=True)
class About:
    """What is known of a file of rows; it stands beside it."""

    rows: int
    bytes: int
    sha256: str
    revision: str | None
    fetched_at: float


def prepare_rows(named: str | Definition, say: Say, *, cwd: Path | None = None) -> Path:
    """The file with the tasks of a benchmark, which is fetched if it is not here; ConfigError if
    that fails."""
    definition = read_definition(named, cwd) if isinstance(named, str) else named
    path = rows_file(definition)
    about = read_about(path)
    if about is None or _has_changed(definition, about):
        about = _fetch(definition, path, say)
    if about.rows != definition.rows:
        is_scored = definition.kind == "benchmark"
        end = ": its figures cannot be compared with published ones" if is_scored else ""
        say(
            f"warning: {definition} has {number_of(about.rows, 'row')} here, and its definition"
            f" says {definition.rows:,}{end}"
        )
    return path


def _has_changed(definition: Definition, about: About) -> bool:
    """Whether a file of the user's is another one than that of the rows."""
    origin = parse_origin(definition)
    if not isinstance(origin, LocalFile):
        return False
    return hashlib.sha256(read_local(definition, origin)).hexdigest() != about.revision


def read_about(path: Path) -> About | None:
    """What is known of a file of rows; None if it is not there, or not whole."""
    try:
        about = About(**orjson.loads(_note_of(path).read_bytes()))
        return about if path.stat().st_size == about.bytes else None
    except (OSError, ValueError, TypeError):
        return None


def _note_of(path: Path) -> Path:
    return path.with_suffix(".about.json")


def _fetch(definition: Definition, path: Path, say: Say) -> About:
    say(f"{definition}: fetching {definition.rows:,} rows")
    held = path.parent / f"{definition.name}.revision"
    pinned = _hold(definition, held)
    found = read_origin(pinned, say)
    shown = [*read_origin(_of_examples(pinned), say).rows] if pinned.examples else []
    own = {definition.kind: definition.name, **({} if definition.publish else {"publish": False})}
    digest, num_rows, size = hashlib.sha256(), 0, 0
    rows = Firsts(found.rows, is_on=definition.drop_repeats)
    tasks = Firsts(make_tasks(definition, rows, shown), get_prompt, is_on=definition.drop_repeats)

    def write_lines() -> Iterator[bytes]:
        nonlocal num_rows, size
        for num_rows, task in enumerate(tasks, 1):  # noqa: B007
            line = orjson.dumps({**task, **own}) + b"\n"
            digest.update(line)
            size += len(line)
            yield line

    write_rows(path, write_lines())
    if not num_rows:
        path.unlink()
        raise ConfigError(f"{definition}: its source has no rows")
    if found.revision:
        held.write_text(found.revision)
    about = About(num_rows, size, digest.hexdigest(), found.revision, time.time())
    write_json(_note_of(path), asdict(about))
    say(f"{definition}: {about.rows:,} rows are in {path}")
    if repeats := rows.num_repeats + tasks.num_repeats:
        left_out = number_of(repeats, "row")
        say(f"{definition}: left out {left_out} whose prompt an earlier row has too")
    return about


def get_prompt(task: JsonObject) -> Any:
    return task["responses_create_params"]["input"]


@dataclass(slots=True)
class Firsts:
    """The objects, without those whose part is that of an earlier one; all, if it is not on."""

    objects: Iterable[JsonObject]
    get_part: Callable[[JsonObject], Any] = lambda each: each
    is_on: bool = True
    num_repeats: int = 0

    def __iter__(self) -> Iterator[JsonObject]:
        seen = set[bytes]()
        for each in self.objects:
            if self.is_on:
                part = orjson.dumps(self.get_part(each), default=str)
                digest = hashlib.blake2b(part, digest_size=16).digest()
                if digest in seen:
                    self.num_repeats += 1
                    continue
                seen.add(digest)
            yield each


def _of_examples(definition: Definition) -> Definition:
    """The definition whose rows are the worked examples of another."""
    own = definition.examples.source if definition.examples else {}
    return definition.model_copy(update={"source": {**definition.source, **own}})


def make_tasks(
    definition: Definition, rows: Iterable[JsonObject], shown: Sequence[JsonObject] = ()
) -> Iterator[JsonObject]:
    """The tasks of those rows that a definition takes, with worked examples from `shown`;
    ConfigError if one cannot be read."""
    mapping = None if definition.mapping == HARBOR else read_mapping(definition)
    read = find_reader(definition)
    with closing(RowTexts()) as texts:
        examples = Shots(definition, read, shown, texts) if definition.examples else None
        for number, row in enumerate(_join(definition, rows), 1):
            try:
                if not all(_is_in(row[name], wanted) for name, wanted in definition.where.items()):
                    continue
                found = read(row)
                if examples:
                    found = {**found, "_examples": examples.write_for(row)}
                yield mapping.build_task(found, texts) if mapping else found
            except (ValueError, KeyError, TypeError) as error:
                said = f"has no column {error}" if isinstance(error, KeyError) else error
                raise ConfigError(f"{definition}: row {number:,}: {said}") from None


def _join(definition: Definition, rows: Iterable[JsonObject]) -> Iterator[JsonObject]:
    """The rows, or those that a reader of several files makes; ConfigError if it cannot."""
    if definition.reader not in JOINS:
        yield from rows
        return
    try:
        yield from JOINS[definition.reader](rows)
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{definition}: its files do not belong together: {error}") from None


def find_reader(definition: Definition) -> Reader:
    """What makes a row of a row of the source; ConfigError for an unknown name."""
    if definition.reader is None or definition.reader in JOINS:
        return lambda row: row
    if definition.reader not in READERS:
        hint = suggest(definition.reader, [*READERS, *JOINS])
        raise ConfigError(f"{definition.path}: reader: there is no {definition.reader!r}{hint}")
    return READERS[definition.reader]


def _is_in(value: Any, wanted: list[Any] | Range) -> bool:
    if isinstance(wanted, Range):
        return wanted.start <= str(value) < wanted.end
    return value in wanted or str(value) in wanted


def _hold(definition: Definition, held: Path) -> Definition:
    """The definition with the revision of its first download, if it pins none."""
    source = definition.source
    is_open = source.get("type", "huggingface") == "huggingface" and not source.get("revision")
    if not is_open or not held.is_file():
        return definition
    return definition.model_copy(update={"source": {**source, "revision": held.read_text()}})


def read_mapping(definition: Definition) -> Mapping:
    """The mapping of a definition; ConfigError if it is wrong."""
    given = definition.mapping
    try:
        return Mapping.model_validate(get_shape(given) if isinstance(given, str) else given)
    except ValidationError as error:
        lines = [
            f"{definition.path}: mapping.{'.'.join(map(str, each.path))}: {each.reason}"
            for each in problems(error, Mapping)
        ]
        raise ConfigError("\n".join(lines)) from None
    except ValueError as error:
        raise ConfigError(f"{definition.path}: {error}") from None


def check_definition(definition: Definition) -> None:
    """ConfigError if its source or its mapping is wrong; nothing is fetched."""
    parse_origin(definition)
    find_reader(definition)
    if definition.mapping != HARBOR:
        read_mapping(definition)
