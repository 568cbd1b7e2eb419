"""Files of rollouts that NeMo Gym wrote, as files of ours.

The copy lies in the user's cache folder, and is made again when the file changes. A task is
identified by its row in `<stem>_materialized_inputs.jsonl`, which NeMo Gym writes beside its
output; without that file, by the parameters of its request.
"""

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from ..errors import ConfigError
from ..reading import cache_folder, parse_line
from ..serving.nemo_gym.episodes import as_rollout, is_episode
from ..serving.nemo_gym.rows import flatten
from ..types import JsonObject, Key, Task
from .input import number_lines
from .lines import build_line, with_verdict
from .tasks import agent_name_of, task_id_of

INPUTS = "_materialized_inputs.jsonl"

NO_AGENT = "nemo_gym"
"""Agent of rollouts that name none."""

NEEDS_COPY = "rollouts of NeMo Gym are converted into a copy in the user's cache folder"

HOW_TO_PLACE = "Name a folder with enough room in the environment variable XDG_CACHE_HOME"

VERSION = 3
"""Of the copies; raise it when the same file is converted in another way."""

OF_RESULT = frozenset({"response", "reward", "ng_trajectory", "ng_agent_observations"})

SERVER, IDENTITY = "_ng_environment_server", "_ng_task_id"
"""What 0.7 writes of a rollout of an environment server: its name, and the task's."""

OF_RUN = frozenset(
    {"agent_ref", "skills_ref", "_ng_task_index", "_ng_rollout_index", "_ng_result_type"}
    | {SERVER, IDENTITY}
)


@dataclass(frozen=True, slots=True)
class GymRollout:
    """A rollout in terms of ours; `index` is None where the line does not say it."""

    agent: str
    task_id: str
    row: JsonObject
    """Of the task."""
    scores: JsonObject
    """What the verifier added."""
    response: JsonObject
    index: Any = None


def read_rollout(given: JsonObject, tasks: Mapping[Any, JsonObject]) -> GymRollout | None:
    """The rollout of a line, whose tasks have these rows; None if it is none."""
    row = as_rollout(given) if is_episode(given) else given
    response, params = row.get("response"), row.get("responses_create_params")
    if not isinstance(response, dict) or not isinstance(params, dict):
        return None
    if not isinstance(response.get("output"), list):
        return None
    task = tasks.get(row.get("_ng_task_index"))
    fields = {name: row[name] for name in row if name not in OF_RUN | OF_RESULT}
    named = {"task": row[IDENTITY]} if row is not given and IDENTITY in row else None
    task_id = task_id_of(task or named or request_of(fields))
    task = None if task is None else {"responses_create_params": params, **task}
    own, scores = divide(task, fields)
    agent = str(agent_name_of(row) or row.get(SERVER) or NO_AGENT)
    return GymRollout(agent, task_id, own, scores, response, row.get("_ng_rollout_index"))


def as_ours(path: str) -> str:
    """The path of a copy in our format, if NeMo Gym wrote the file; else the path."""
    given = Path(path)
    if not given.is_file() or not is_theirs(given):
        return path
    status = given.stat()
    inputs = given.with_name(given.stem + INPUTS)
    beside = inputs.stat().st_mtime_ns if inputs.is_file() else 0
    identity = repr((VERSION, given.resolve(), status.st_size, status.st_mtime_ns, beside))
    digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
    if (folder := cache_folder()) is None:
        raise ConfigError(f"{path}: {NEEDS_COPY}, and there is no home folder. {HOW_TO_PLACE}")
    copy = folder / "rollouts_of_nemo_gym" / digest / given.name
    if not copy.is_file():
        tasks = dict(read_tasks(inputs)) if beside else {}
        try:
            _write(copy, (orjson.dumps(line) + b"\n" for line in _convert(given, tasks)))
        except OSError as error:
            why = f"{error.strerror}: {copy.parent}"
            raise ConfigError(f"{path}: {NEEDS_COPY}: {why}. {HOW_TO_PLACE}") from None
    return str(copy)


def _write(copy: Path, lines: Iterable[bytes]) -> None:
    copy.parent.mkdir(parents=True, exist_ok=True)
    partial = copy.with_name(f"{copy.name}.{os.getpid()}")
    try:
        with partial.open("wb") as file:
            file.writelines(lines)
        partial.rename(copy)
    finally:
        partial.unlink(missing_ok=True)


def is_theirs(path: Path) -> bool:
    """Whether the first line is a rollout of NeMo Gym."""
    for _, raw in number_lines(path):
        return not _is_ours(raw) and _parse(raw, {}) is not None
    return False


def _is_ours(raw: bytes) -> bool:
    """Whether a line has a field that only ours have. A long line is not copied for it."""
    from msgspec import DecodeError, Raw, json  # not needed for --help

    with suppress(DecodeError):
        return not {"kind", "rollout"}.isdisjoint(json.decode(raw, type=dict[str, Raw]))
    return False


def _parse(raw: bytes, tasks: Mapping[Any, JsonObject]) -> tuple[JsonObject, GymRollout] | None:
    """A line with a request, a response and a reward; None for any other."""
    row = parse_line(raw)
    if row is None or not isinstance(row.get("reward"), int | float):
        return None
    found = read_rollout(row, tasks)
    return found and (row, found)


def read_tasks(inputs: Path) -> Iterator[tuple[Any, JsonObject]]:
    for number, raw in number_lines(inputs):
        try:
            row = flatten(orjson.loads(raw))
        except ValueError as error:
            raise ConfigError(f"{inputs}:{number}: {error}") from None
        yield row.get("_ng_task_index"), {k: row[k] for k in row if k not in OF_RUN}


def _convert(path: Path, tasks: dict[int, JsonObject]) -> Iterator[JsonObject]:
    repeats: Counter[tuple[str, str]] = Counter()
    positions: dict[str, int] = {}
    for number, raw in number_lines(path):
        if (parsed := _parse(raw, tasks)) is None:
            continue
        row, found = parsed
        id, agent = found.task_id, found.agent
        index = repeats[id, agent] if found.index is None else found.index
        repeats[id, agent] += 1
        position = row.get("_ng_task_index", positions.setdefault(id, len(positions)))
        known = {"attempt": 1, "model": found.response.get("model"), "settings": "nemo_gym"}
        task = Task(id, position, number, agent, found.row)
        line = build_line(task, Key(id, agent, "", index), found.response, known)
        yield with_verdict(line, {**found.scores, "reward": row["reward"]}, {})


def divide(task: JsonObject | None, fields: JsonObject) -> tuple[JsonObject, JsonObject]:
    """The row, and what the verifier added. Without the input nothing tells them apart: then all
    fields are the row's, so that it can be verified again, and numbers are also scores."""
    if task is None:
        return fields, {k: v for k, v in fields.items() if isinstance(v, int | float)}
    return task, {k: v for k, v in fields.items() if k not in task}


def request_of(row: JsonObject) -> JsonObject:
    params: dict[str, Any] = row["responses_create_params"]
    return {"responses_create_params": {k: v for k, v in params.items() if v is not None}}
