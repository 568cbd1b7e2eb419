"""Files of rollouts that NeMo Gym wrote, as files of ours.

The copy lies in the user's cache folder, and is made again when the file changes. A task is
identified by its row in `<stem>_materialized_inputs.jsonl`, which NeMo Gym writes beside its
output; without that file, by the parameters of its request.
"""

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import orjson

from ..errors import ConfigError
from ..reading import cache_folder
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

VERSION = 2
"""Of the copies; raise it when the same file is converted in another way."""

OF_RESULT = frozenset({"response", "reward", "ng_trajectory", "ng_agent_observations"})

OF_RUN = frozenset({"agent_ref", "skills_ref", "_ng_task_index", "_ng_rollout_index"})


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
        row = _parse(raw)
        return row is not None and "kind" not in row and "rollout" not in row
    return False


def _parse(raw: bytes) -> JsonObject | None:
    """A line with a request, a response and a reward; None for any other."""
    try:
        row = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(row, dict) or not isinstance(row.get("reward"), int | float):
        return None
    response, params = row.get("response"), row.get("responses_create_params")
    is_one = isinstance(response, dict) and isinstance(response.get("output"), list)
    return row if is_one and isinstance(params, dict) else None


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
        if (row := _parse(raw)) is None:
            continue
        agent = str(agent_name_of(row) or NO_AGENT)
        task_row = tasks.get(row.get("_ng_task_index", -1))
        fields = {name: row[name] for name in row if name not in OF_RUN | OF_RESULT}
        id = task_id_of(request_of(fields) if task_row is None else task_row)
        task_row, scores = divide(task_row, fields)
        index = row.get("_ng_rollout_index", repeats[id, agent])
        repeats[id, agent] += 1
        position = row.get("_ng_task_index", positions.setdefault(id, len(positions)))
        key = Key(id, agent, "", index)
        response = row["response"]
        known = {"attempt": 1, "model": response.get("model"), "settings": "nemo_gym"}
        line = build_line(Task(id, position, number, agent, task_row), key, response, known)
        yield with_verdict(line, {**scores, "reward": row["reward"]}, {})


def divide(task: JsonObject | None, fields: JsonObject) -> tuple[JsonObject, JsonObject]:
    """The row, and what the verifier added. Without the input nothing tells them apart: then all
    fields are the row's, so that it can be verified again, and numbers are also scores."""
    if task is None:
        return fields, {k: v for k, v in fields.items() if isinstance(v, int | float)}
    return task, {k: v for k, v in fields.items() if k not in task}


def request_of(row: JsonObject) -> JsonObject:
    params: dict[str, Any] = row["responses_create_params"]
    return {"responses_create_params": {k: v for k, v in params.items() if v is not None}}
