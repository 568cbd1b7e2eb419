"""The input file as a stream of tasks: memory does not grow with it.

A task's identity is its content. A line that is no task is reported with its number and never stops
the others.
"""

import gzip
import hashlib
import re
import shutil
import sys
import tempfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from string import Formatter
from typing import Any, BinaryIO

import orjson
import yaml

from ..errors import ConfigError, suggest
from ..types import JsonObject, Task
from .compact import NumberTable

IGNORED_IN_IDENTITY = "_ng_"
"""Fields with this prefix, and `agent_ref`, say where a row comes from rather than what it asks."""

BREATH = 1_000
"""Rows read without a pause: about 20 ms in which the event loop does nothing else."""

NO_AGENT = "no agent: give +agent_name=…, or the row an agent_ref"


@dataclass(frozen=True, slots=True)
class Malformed:
    """A line that is no task."""

    line: int
    message: str
    text: str


@dataclass(frozen=True, slots=True)
class TaskReader:
    """How lines become tasks: which agent, which parameters, which prompt."""

    path: Path
    agents: Collection[str]
    """Agents that rows may name."""
    agent_name: str | None
    default_params: JsonObject
    override_params: JsonObject
    prompt: "Prompt | None" = None
    limit: int | None = None
    repeats: Callable[[str], int] = lambda agent: 1
    positions: NumberTable = field(default_factory=NumberTable)
    """Each distinct task's, the same whoever reads, and however far."""

    def read(self) -> "Iterator[Task | Malformed]":
        """The tasks of the file in input order, malformed lines among them."""
        return self.tasks(number_lines(self.path))

    def tasks(self, rows: "Iterable[tuple[int, bytes | JsonObject]]") -> Iterator[Task | Malformed]:
        """The tasks of numbered rows, given as JSON or as objects."""
        reading = Reading(self)
        for number, row in rows:
            if self.limit and reading.num_tasks >= self.limit:
                return
            yield reading.task(number, row)

    def of_input(self, path: str, limit: int | None) -> "TaskReader":
        """The same reader over another input."""
        return replace(self, path=Path(path), limit=limit, positions=NumberTable())

    def agent_of(self, row: JsonObject) -> str:
        agent = self.agent_name or find_agent_name(row)
        if agent is None:
            raise ValueError(NO_AGENT)
        if agent not in self.agents:
            hint = suggest(agent, self.agents)
            raise ValueError(f"agent_ref names '{agent}', which does not run here{hint}")
        return agent

    def row_to_send(self, row: JsonObject) -> JsonObject:
        """The row with the prompt and the create params that the command adds; ValueError if it is
        no task."""
        own = row.get("responses_create_params", {} if self.prompt else None)
        if not isinstance(own, dict):
            raise ValueError(
                "no responses_create_params object (+prompt_config=… builds one from other fields)"
            )
        if self.prompt:
            own = self.prompt.apply(own, row)
        if not isinstance(own.get("input"), str | list):
            raise ValueError("responses_create_params has no input (a string or a list of items)")
        params = merge(merge(self.default_params, own), self.override_params)
        if params is row.get("responses_create_params"):
            return row
        return {**row, "responses_create_params": params}


class Reading:
    """One pass over rows: it numbers distinct tasks, and the repeats of identical rows."""

    def __init__(self, reader: TaskReader) -> None:
        self._reader = reader
        self._num_distinct = 0
        self._repeated: dict[tuple[int, str], int] = {}
        self.num_tasks = 0

    def task(self, number: int, given: bytes | JsonObject) -> Task | Malformed:
        """The task of one row; `number` is its line."""
        reader = self._reader
        try:
            row = _parse(given) if isinstance(given, bytes) else given
            agent = reader.agent_of(row)
            sent = reader.row_to_send(row)
        except ValueError as error:
            return Malformed(number, str(error), _start_of(given))
        self.num_tasks += 1
        task_id = task_id_of(row)
        small_id = int(task_id, 16)
        position = reader.positions.setdefault(small_id, self._num_distinct)
        is_known, which = position < self._num_distinct, (small_id, agent)
        self._num_distinct += not is_known
        # with one agent for all, only rows that come again need a count
        asked = reader.repeats(agent) if is_known and reader.agent_name else 0
        first = self._repeated.get(which, asked)
        if is_known or reader.agent_name is None:
            self._repeated[which] = first + reader.repeats(agent)
        index = row.get("_ng_task_index")
        return Task(task_id, index if type(index) is int else position, number, agent, sent, first)


def _parse(raw: bytes) -> JsonObject:
    try:
        row = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(row, dict):
        raise ValueError(f"not a JSON object but {type(row).__name__}")
    return row


def _start_of(given: Any) -> str:
    return (given[:2048].decode("utf-8", "replace") if isinstance(given, bytes) else repr(given))[
        :2048
    ]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt_config: templates whose `{field}` is filled from the row."""

    user: str
    system: str | None

    @classmethod
    def load(cls, path: Path) -> "Prompt":
        """ConfigError where the file is not `{user: …, system: …}`."""
        try:
            content = yaml.safe_load(path.read_text())
        except OSError as error:
            near = [each.name for each in path.parent.glob("*")]
            hint = suggest(path.name, near)
            raise ConfigError(f"prompt_config {path}: {error.strerror}{hint}") from None
        except yaml.YAMLError as error:
            reason = " ".join(str(error).split())
            raise ConfigError(f"prompt_config {path}: not YAML: {reason}") from None
        if not isinstance(content, dict) or not isinstance(content.get("user"), str):
            raise ConfigError(f"prompt_config {path}: needs a text 'user' (and maybe 'system')")
        if unknown := set(content) - {"user", "system"}:
            raise ConfigError(f"prompt_config {path}: unknown {', '.join(sorted(unknown))}")
        for name, template in content.items():
            try:
                list(TEMPLATES.parse(_escape(str(template or ""))))
            except ValueError as error:
                raise ConfigError(f"prompt_config {path}: {name}: {error} ({TWICE})") from None
        return cls(content["user"], content.get("system"))

    def apply(self, params: JsonObject, row: Mapping[str, Any]) -> JsonObject:
        if "input" in params:
            raise ValueError("the row has an input of its own, and prompt_config would build one")
        items = [{"role": "user", "content": _fill(self.user, row)}]
        if self.system is not None:
            items.insert(0, {"role": "system", "content": _fill(self.system, row)})
        return {**params, "input": items}


class _Templates(Formatter):
    """Fields are the row's: one whose name is a number is no position."""

    def get_value(self, key: int | str, args: Any, kwargs: Mapping[str, Any]) -> Any:
        return kwargs[str(key)]


TEMPLATES = _Templates()

TWICE = "a brace that is meant as one is written twice: {{"


def _escape(template: str) -> str:
    """`{}` names no field and stands for itself, as in `\\boxed{}`."""
    return re.sub(r"(?<!\{)\{\}(?!\})", "{{}}", template)


def _fill(template: str, row: Mapping[str, Any]) -> str:
    try:
        return TEMPLATES.vformat(_escape(template), (), row)
    except KeyError as error:
        raise ValueError(
            f"prompt_config needs the field {error}, which the row has not ({TWICE})"
        ) from None
    except (AttributeError, IndexError, TypeError, ValueError) as error:
        raise ValueError(f"prompt_config cannot be filled: {error} ({TWICE})") from None


def find_agent_name(row: Mapping[str, Any]) -> Any:
    """The agent that a row's `agent_ref` names; None where it names none."""
    named = row.get("agent_ref")
    return named.get("name") if isinstance(named, dict) else None


def task_id_of(row: Mapping[str, Any]) -> str:
    """16 hex digits of the row's content; key order, white space and bookkeeping do not matter."""
    content = {
        key: value
        for key, value in row.items()
        if key != "agent_ref" and not key.startswith(IGNORED_IN_IDENTITY)
    }
    canonical = orjson.dumps(content, option=orjson.OPT_SORT_KEYS)
    return hashlib.blake2b(canonical, digest_size=8).hexdigest()


def merge(under: Any, over: Any) -> Any:
    """`over` laid deeply over `under`: objects merge, anything else replaces."""
    if not (isinstance(under, dict) and isinstance(over, dict)):
        return over
    if not (under and over):
        return under or over
    result = dict(under)
    for key, value in over.items():
        result[key] = merge(result[key], value) if key in result else value
    return result


def number_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Numbered lines that are not blank, from 1; ConfigError where the file cannot be read
    through."""
    number = 0
    try:
        with _open(path) as stream:
            for number, raw in enumerate(stream, 1):
                if number == 1:
                    raw = raw.removeprefix(b"\xef\xbb\xbf")  # a byte order mark
                if raw.strip():
                    yield number, raw
    except FileNotFoundError:
        near = [each.name for each in path.parent.glob("*")] if path.parent.is_dir() else []
        raise ConfigError(f"no input file {path}{suggest(path.name, near)}") from None
    except (OSError, EOFError, zlib.error) as error:
        after = f" after line {number}" if number else ""
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path}: cannot be read{after}: {reason}") from None


@contextmanager
def _open(path: Path) -> Iterator[Iterable[bytes]]:
    if path.suffix == ".gz":
        with gzip.open(path, "rb") as stream:
            yield stream
    elif path.suffix == ".zst":
        zstd = _zstd()
        try:
            with zstd.open(path, "rb") as stream:
                yield stream
        except zstd.ZstdError as error:
            raise OSError(str(error)) from None
    else:
        with path.open("rb") as stream:
            yield stream


def _zstd() -> Any:
    name = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
    try:
        return import_module(name)
    except ImportError:
        raise ConfigError(
            "reading .zst needs an extra: pip install 'rollout-kit[zst]' (in a checkout:"
            " pip install -e '.[zst]')"
        ) from None


@contextmanager
def input_file(path: str, stdin: BinaryIO | None = None) -> Iterator[Path]:
    """The input as a file that can be read twice: standard input (`-`) and pipes are spooled to
    disk first."""
    given = Path(path).expanduser()
    if path != "-" and not given.is_fifo():
        yield given
        return
    with tempfile.NamedTemporaryFile(suffix=given.suffix or ".jsonl") as spool:
        with nullcontext(stdin or sys.stdin.buffer) if path == "-" else given.open("rb") as stream:
            shutil.copyfileobj(stream, spool)
        spool.flush()
        yield Path(spool.name)
