"""Reads the input file as a stream of tasks, without holding them in memory.

A task's id is a hash of its content. A malformed line is reported with its number and does not stop
the others.
"""

import hashlib
import os
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import orjson

from .._version import __version__
from ..errors import ConfigError, number_of, suggest
from ..reading import parse_line, read_object
from ..responses import DEEPEST, is_too_deep
from ..serving.endpoints.params import find_problems, merge
from ..serving.nemo_gym.episode_route import NO_REQUEST, PARAMS
from ..serving.nemo_gym.rows import SOURCE, flatten
from ..types import JsonObject, Task
from .arms.arm import Arm
from .arms.template import Prompt
from .columns import State
from .compact import Keys, NumberTable, is_index, small
from .files import OutputPaths
from .index import Leading
from .input import number_lines
from .lines import Malformed
from .manifest import last_input
from .tables.table_rows import BadRow

IGNORED_IN_IDENTITY = "_ng_"
"""A task's id ignores fields with this prefix, and those of `OF_ROUTE`: they record a row's
origin."""

OF_ROUTE = ("agent_ref", SOURCE)
"""Fields that say which agent runs a row."""

BREATH = 1_000
"""Rows to read before other work on the event loop gets a turn: about 20 ms."""

TEXT_KEPT = 2048
"""Bytes of a malformed line that are copied to the failures file."""

PROMPT_FIELDS = ("messages", "prompt", "input", "question", "problem", "instruction")
"""Names that other tools give to what a model is asked."""

ANSWERS = ("answer", "label", "target", "solution")
"""Names that other tools give to the right answer."""

STORED = frozenset({"rollout", "unverified", "failure"})
"""Kinds of lines that a collection writes."""

DEFAULT = "_default"
"""In `agent_map`: the agent of every row that has no entry."""

NO_AGENT = "no agent: give +agent_name=…, or add an agent_ref to the row"


@dataclass(frozen=True, slots=True)
class Routes:
    """Both keyed by the name of an agent in a row's `agent_ref`, or by its `task_source`."""

    moved: Mapping[str, str] = field(default_factory=dict)
    """`agent_map`: the agent that runs a row in place of the one that the row names."""
    spread: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """`fan_out`: several agents, each of which runs the row."""

    def __bool__(self) -> bool:
        return bool(self.moved or self.spread)

    def check(self, agents: Sequence[str]) -> None:
        """ConfigError for an agent that does not exist, and for one that is named twice."""
        for key, name in self._targets():
            if name not in agents:
                known = ", ".join(agents) or "none"
                hint = suggest(name, agents)
                raise ConfigError(f"{key}: no agent is called '{name}'{hint}; there are: {known}")
        for key, names in self.spread.items():
            if not names:
                raise ConfigError(f"fan_out.{key}: name at least one agent, or leave it out")
            if twice := next((name for name in names if list(names).count(name) > 1), None):
                raise ConfigError(
                    f"fan_out.{key}: '{twice}' is named twice; num_repeats gives a task several"
                    " rollouts of one agent"
                )

    def _targets(self) -> Iterator[tuple[str, str]]:
        for key, name in self.moved.items():
            yield f"agent_map.{key}", name
        for key, names in self.spread.items():
            yield from ((f"fan_out.{key}", name) for name in names)

    def agents_of(self, agent: Any, source: Any) -> Sequence[str]:
        """Those of a row that names an agent and a source, either of which may be None; none if
        the row decides itself."""
        own = source if agent is None else agent
        if isinstance(own, str) and own in self.spread:
            return self.spread[own]
        for name in (agent, source, DEFAULT):
            if isinstance(name, str) and name in self.moved:
                return [self.moved[name]]
        return ()


class RowMapping(Protocol):
    """Makes a task of a row in another form; ValueError if that is impossible."""

    def apply(self, row: JsonObject) -> JsonObject: ...
    def settings(self) -> JsonObject: ...


@dataclass(frozen=True, slots=True)
class TaskReader:
    """Turns lines into tasks: sets the agent, the parameters and the prompt."""

    path: Path
    agents: Collection[str]
    """Agents that rows may name."""
    agent_name: str | None
    """The agent of every row; None if rows name their agents."""
    default_params: JsonObject
    override_params: JsonObject
    prompt: Prompt | None = None
    limit: int | None = None
    repeats: Callable[[str], int] = lambda agent: 1
    arms: Sequence[Arm] = ()
    """Ways of asking each task; without any it is asked as its row says."""
    is_mine: Callable[[str], bool] | None = None
    """Which task ids are read; None = all. Others keep their position."""
    names_malformed: bool = True
    positions: NumberTable = field(default_factory=NumberTable)
    """Position of each distinct task, shared by all passes over the input."""
    leading: Leading = field(default_factory=Leading)
    default_agent: str | None = None
    """The agent of rows that name none, or one that is not known."""
    sources: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """What a row's `task_source` may say → the agents that it can mean."""
    routes: Routes = field(default_factory=Routes)
    without_request: Collection[str] = ()
    """Agents that make the request to the model themselves."""
    mapping: RowMapping | None = None
    """Makes tasks of rows. A task's id is that of the row as it was."""

    def read(self) -> "Iterator[Task | Malformed]":
        """Yield the tasks of the file in input order, malformed lines among them."""
        return self.tasks(number_lines(self.path))

    def tasks(self, rows: "Iterable[tuple[int, bytes | JsonObject]]") -> Iterator[Task | Malformed]:
        """Yield the tasks of numbered rows, given as JSON or as objects."""
        reading = Reading(self)
        for number, row in rows:
            if self.limit and reading.num_tasks >= self.limit:
                return
            for task in reading.tasks(number, row):
                if self.is_mine is None or self._is_mine(task):
                    yield task

    def _is_mine(self, task: "Task | Malformed") -> bool:
        if isinstance(task, Malformed):
            return self.names_malformed
        return self.is_mine is None or self.is_mine(task.task_id)

    def read_owed(self, owed: Sequence[int]) -> Iterator[Task | Malformed]:
        """The tasks of those known lines, counted from 0, and of every line behind the known."""
        reading, known = Reading(self), self.leading.known
        at = owed[0] if owed else len(known)
        lines = number_lines(self.path, at)
        end = min(self.limit or len(known), len(known))
        for row in owed:
            if row < end:
                reading.skip_to(row)
                for line in islice(lines, row - at, row - at + 1):
                    yield from reading.tasks(*line)
                at = row + 1
        if self.limit and self.limit <= len(known):
            return
        for place, line in enumerate(islice(lines, len(known) - at, None)):
            if place == 0:  # from here on a task may be one of before
                reading.skip_to(len(known))
                for position, task in enumerate(known):
                    self.positions.setdefault(task, position)
            if self.limit and reading.num_tasks >= self.limit:
                return
            yield from reading.tasks(*line)

    def mark(self) -> bytes:
        """Stands for the input as it is, and for how its lines become tasks; empty if rows name
        their agents, or the input is no file."""
        how = (sorted(self.agents), self.agent_name, self.default_params, self.override_params)
        with suppress(OSError), self.path.open("rb") as stream:
            state = State.of(stream.fileno(), os.fstat(stream.fileno()).st_size)
            said = repr((__version__, state, *how, self.prompt, self.arms, self.mapping))
            return hashlib.blake2b(said.encode(), digest_size=16).digest() if how[1] else b""
        return b""

    def of_input(self, path: str, limit: int | None) -> "TaskReader":
        """The same reader for another input."""
        own = {"positions": NumberTable(), "leading": Leading()}
        return replace(self, path=Path(path), limit=limit, **own)

    def agents_of(self, row: JsonObject) -> Sequence[str]:
        """The agents that run a row, one as a rule; ValueError if it leads to none."""
        if self.routes and (found := self.routes.agents_of(agent_name_of(row), row.get(SOURCE))):
            return found
        return [self._agent_of(row)]

    def _agent_of(self, row: JsonObject) -> str:
        agent = self.agent_name or agent_name_of(row) or self._agent_of_source(row)
        if self.default_agent is not None and agent not in self.agents:
            return self.default_agent
        if agent is None:
            raise ValueError(NO_AGENT)
        if agent not in self.agents:
            hint = suggest(agent, self.agents)
            raise ValueError(f"agent_ref names an unknown agent '{agent}'{hint}")
        return agent

    def _agent_of_source(self, row: JsonObject) -> str | None:
        """The agent that a row's `task_source` leads to; ValueError if that is unclear."""
        source = row.get(SOURCE)
        if not isinstance(source, str):
            return None
        found = self.sources.get(source, ())
        if len(found) == 1:
            return found[0]
        if not found and self.default_agent is not None:
            return None
        hint = f": it can mean {', '.join(found)}" if found else suggest(source, self.sources)
        raise ValueError(f"{SOURCE} '{source}' leads to no single agent{hint}; add +agent_name=…")

    def row_to_send(self, row: JsonObject) -> JsonObject:
        """The row with the command's prompt and create params merged in; ValueError if it is not a
        task."""
        if row.get("kind") in STORED and isinstance(row.get("rollout"), dict):
            raise ValueError("the line is a stored rollout, not a task: ng_reverify verifies it")
        if self.mapping is not None:
            row = self.mapping.apply(row)
        asks = bool(self.prompt or (self.arms and all(arm.has_question for arm in self.arms)))
        own = row.get("responses_create_params", {} if asks else None)
        if not isinstance(own, dict):
            raise ValueError(f"no responses_create_params object ({_how_to_map(row)})")
        if self.prompt:
            own = self.prompt.apply(own, row)
        params = merge(merge(self.default_params, own), self.override_params)
        for name, reason in find_problems(params):
            raise ValueError(f"responses_create_params.{name}: {reason}")
        if not (isinstance(own.get("input"), str | list) or (asks and "input" not in own)):
            raise ValueError("responses_create_params has no input (a string or a list of items)")
        if params is not row.get("responses_create_params"):
            row = {**row, "responses_create_params": params}
        for arm in self.arms:
            arm.patch(row)
        return row


class Reading:
    """One pass over rows: numbers distinct tasks, and the repeats of identical rows."""

    def __init__(self, reader: TaskReader) -> None:
        self._reader = reader
        self._num_distinct = 0
        self._repeated: dict[tuple[int, str], int] = {}
        self.num_tasks = 0

    def skip_to(self, row: int) -> None:
        """Take the leading lines before this one as read."""
        self._num_distinct = self.num_tasks = row

    def tasks(self, number: int, given: bytes | JsonObject) -> Sequence[Task | Malformed]:
        """The tasks of one row, one for each agent that runs it; `number` is its line."""
        reader = self._reader
        try:
            row = flatten(parse_row(given if isinstance(given, bytes) else _encode(given)))
            agents = reader.agents_of(row)
            needs_none = bool(agents) and all(each in reader.without_request for each in agents)
            sent = reader.row_to_send({PARAMS: NO_REQUEST, **row} if needs_none else row)
        except ValueError as error:
            return [Malformed(number, str(error), _start_of(given))]
        self.num_tasks += 1
        task_id = task_id_of(row)
        small_id = int(task_id, 16)
        position = reader.positions.setdefault(small_id, self._num_distinct)
        reader.leading.follow(number, small_id, position)
        is_known = position < self._num_distinct
        self._num_distinct += not is_known
        index = row.get("_ng_task_index")
        index = index if type(index) is int and is_index(index) else position
        return [
            Task(task_id, index, number, agent, sent, self._count(small_id, agent, is_known))
            for agent in agents
        ]

    def _count(self, task: int, agent: str, is_known: bool) -> int:
        """The number of the first rollout of a row: identical rows continue each other's."""
        reader, which = self._reader, (task, agent)
        # with one agent for all rows, only identical rows need a count
        asked = reader.repeats(agent) if is_known and reader.agent_name else 0
        first = self._repeated.get(which, asked)
        if is_known or reader.agent_name is None:
            self._repeated[which] = first + reader.repeats(agent)
        return first


def parse_row(raw: bytes) -> JsonObject:
    """The row of a line; ValueError says why it is none."""
    if isinstance(raw, BadRow):
        raise ValueError(raw.reason)
    try:
        row = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(row, dict):
        raise ValueError(f"not a JSON object but {type(row).__name__}")
    if is_too_deep(raw, row):
        raise ValueError(f"nested too deeply: a row may have {DEEPEST} levels")
    return row


def _how_to_map(row: JsonObject) -> str:
    """How to make a task of a row in another form."""
    for name in PROMPT_FIELDS:
        if name in row:
            answer = next((f" +map.expected_answer={each}" for each in ANSWERS if each in row), "")
            if isinstance(row[name], str):
                given = f"{{{{ {name} }}}}"
                in_python = f'in Python prompt="{given}"'
                return f"it has '{name}': add '+prompt={given}'{answer}, {in_python}"
            return (
                f"it has '{name}': jq -c '{{responses_create_params: {{input: .{name}}}}} + .'"
                " rows.jsonl > tasks.jsonl"
            )
    return (
        f"it has {', '.join(row) or 'no field'}: '+prompt=… {{{{ field }}}} …' builds one, and +map"
        " names the columns of other fields"
    )


def _encode(row: Any) -> bytes:
    """The row of an iterable as JSON, so that a later change of the object changes nothing here."""
    try:
        return orjson.dumps(row)
    except TypeError as error:
        raise ValueError(f"not JSON: {error}") from None


def _start_of(given: Any) -> str:
    if isinstance(given, bytes):
        return given[:TEXT_KEPT].decode("utf-8", "replace")
    try:
        return repr(given)[:TEXT_KEPT]
    except RecursionError:
        return "{…}"


def agent_name_of(row: Mapping[str, Any]) -> Any:
    """The agent that a row's `agent_ref` names, or None."""
    named = row.get("agent_ref")
    return named.get("name") if isinstance(named, dict) else None


def task_id_of(row: Mapping[str, Any]) -> str:
    """Hash of the row's content, 16 hex digits; ignores key order, white space and bookkeeping."""
    content = {
        key: value
        for key, value in row.items()
        if key not in OF_ROUTE and not key.startswith(IGNORED_IN_IDENTITY)
    }
    canonical = orjson.dumps(content, option=orjson.OPT_SORT_KEYS)
    return hashlib.blake2b(canonical, digest_size=8).hexdigest()


Covers = Callable[[str, str], bool]
"""Whether the rollouts of an agent in a scope are meant."""


class Others(NamedTuple):
    """What an output holds of other inputs."""

    rollouts: int
    tasks: int


class OwnTasks:
    """Contains the ids of an input's tasks."""

    def __init__(self, numbers: Container[int], names: Container[str] = ()) -> None:
        self._numbers, self._names = numbers, names
        """Ids as `small` makes them: numbers, and the names of foreign tasks."""

    @classmethod
    def of(cls, task_ids: Iterable[str]) -> "OwnTasks":
        found: set[Any] = {*map(small, task_ids)}
        return cls(found, found)

    @classmethod
    def of_file(cls, path: Path) -> "OwnTasks":
        """Those of a file of tasks; ConfigError if it cannot be read."""
        found = NumberTable()
        for number in read_task_numbers(path):
            found.setdefault(number, 0)
        return cls(found)

    def __contains__(self, task_id: str) -> bool:
        return self.has(small(task_id))

    def has(self, task: int | str) -> bool:
        """The same for an id as `small` makes it."""
        return task in self._numbers if isinstance(task, int) else task in self._names

    def count_others(self, done: Keys, covers: Covers) -> Others:
        """What is done of other tasks."""
        rollouts, others = 0, set[int | str]()
        for which, tasks in done.by_scope():
            if covers(*which):
                found = [task for task in tasks if not self.has(task)]
                rollouts += len(found)
                others.update(found)
        return Others(rollouts, len(others))


def read_task_numbers(path: Path) -> Iterator[int]:
    """The ids of a file's tasks as numbers, without reading the tasks themselves."""
    for _, raw in number_lines(path):
        if (row := parse_line(raw)) is not None:
            yield int(task_id_of(row), 16)


def find_earlier_inputs(paths: Iterable[Path]) -> Iterator[str]:
    """A line for each output that holds tasks which are not of its last run's input."""
    for path in paths:
        if path.suffix != ".jsonl":
            continue
        manifest = read_object(OutputPaths(path).manifest)
        counts, name = manifest.get("counts"), last_input(manifest).get("path")
        number = counts.get("other_tasks") if isinstance(counts, dict) else None
        if isinstance(number, int) and name:
            yield (
                f"{path}: {number_of(number, 'task')} of an earlier input, not of {name}:"
                f" +input_jsonl_fpath={name} leaves them out"
            )
