"""What is known of a rollout without a response: the row that it was made from, and its stored
turns."""

from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path

from ...errors import ConfigError
from ...reading import parse_line, read_object
from ...responses import Item, output_items, without_provider_data
from ...session import RETURNED
from ...store.filters.masks import rows_of_task
from ...store.index import LineChanged
from ...store.input import number_lines
from ...store.lines import row_of
from ...store.tasks import task_id_of
from ...store.turns import read_turns
from ...types import JsonObject, Key
from .dataset import StoredOutput


def describe_unfinished(output: StoredOutput, key: Key, line: JsonObject) -> JsonObject:
    """`task` is the input row or None, `task_from` says where it was found or looked for. `turns`
    are the items that the model has answered with, and the beginning and end of what came back."""
    row, place = _find_task(output, key, line.get("_ng_task_index"))
    stored = read_turns(output.paths.turns, key)
    returned = {turn["request"]: turn[RETURNED] for turn in stored if RETURNED in turn}
    own = [turn for turn in stored if turn.get("by", "policy") == "policy"]
    turns = [turn for turn in own if RETURNED not in turn]
    items: list[Item] = []
    for turn in turns:
        items += output_items(without_provider_data(turn.get("response") or {}))
        items += returned.get(turn.get("request", ""), ())
    return {"task": row, "task_from": place, "turns": items, "num_turns": len(turns)}


def _find_task(output: StoredOutput, key: Key, index: object) -> tuple[JsonObject | None, str]:
    for part in output.parts:
        for at in rows_of_task(part.index.columns, key.task_id):
            with suppress(LineChanged):
                found = parse_line(part.index.line(at)) or {}
                if isinstance(found.get("responses_create_params"), dict):
                    number = part.index.key(at).rollout_index
                    return row_of(found), f"rollout {number} of the same task"
    inputs = read_object(output.paths.manifest).get("inputs")
    named = [each.get("path") for each in inputs or () if isinstance(each, dict)]
    paths = [Path(path) for path in reversed(named) if isinstance(path, str)]
    for path in paths:
        with suppress(ConfigError, OSError):
            for row in _rows_from(path, index):
                if task_id_of(row) == key.task_id:
                    return row, str(path)
    return None, " or ".join(map(str, paths)) or "the input, which run.json does not name"


def _rows_from(path: Path, index: object) -> Iterator[JsonObject]:
    """The rows of an input, first those from where the task was."""
    start = index if isinstance(index, int) else 0
    lines = chain(number_lines(path, start), number_lines(path) if start else ())
    for _, raw in lines:
        if (row := parse_line(raw)) is not None:
            yield row
