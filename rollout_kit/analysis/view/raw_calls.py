"""The call of a model that made a turn: as it was recorded, or else rebuilt from the line."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...reading import parse_line, read_lines
from ...responses import as_object, input_items, output_items
from ...store.steps import is_returned
from ...types import JsonObject, Key
from .stored_line import StoredLine

ROUTE = "/v1/responses"

MAX_SHOWN = 200
"""Items before a turn that its request shows: the newest ones."""

NO_TOOLS = "The tools that the agent offered are not in the line."
SHORTENED = "The agent had shortened the conversation: the model got less than this."


def describe_call(
    stored: StoredLine, step: Mapping[str, Any], request: JsonObject, tape: object, key: Key
) -> JsonObject:
    """`request` is the one of the turn without the items of the output, which are added. `source`
    is the file of the recording in the folder `tape`; empty if the call is rebuilt."""
    begin = step["begin"]
    turn = stored.items(begin, step["end"])
    if isinstance(tape, str):
        recorded = _find_recorded(Path(tape), key, len(request["input"]) + begin, turn)
        if recorded is not None:
            return recorded
    first = max(0, begin - MAX_SHOWN)
    request = {**request, "input": [*request["input"], *stored.items(first, begin)]}
    response = {"output": [item for item in turn if not is_returned(item)]}
    steps = stored.steps
    if step["number"] == steps[-1]["number"]:
        whole = as_object(stored.head.get("response"))
        # the usage is that of all turns
        kept = {name: each for name, each in whole.items() if name != "usage" or len(steps) == 1}
        response = {**kept, **response}
    notes = [NO_TOOLS] if "tools" not in request and step["tools"] else []
    if "compactions" in as_object(stored.head.get("rollout")):
        notes.append(SHORTENED)
    figures = {name: step[name] for name in ("model", "input", "cached", "output") if name in step}
    return {
        **{"source": "", "notes": notes, "left_out": first},
        **{"request": request, "response": response, "figures": figures},
    }


def _find_recorded(
    folder: Path, key: Key, num_items: int, turn: Sequence[Any]
) -> JsonObject | None:
    """The newest recorded call of a rollout with as many items in its request, and with a reply
    that begins the turn."""
    found, task = None, key.task_id.encode()
    for path in sorted(folder.glob("calls*.jsonl")):
        with suppress(OSError):
            for _, raw in read_lines(path):
                line = (parse_line(raw) if task in raw else None) or {}
                if (line.get("task_id"), line.get("rollout_index")) != key.rollout:
                    continue
                asked, reply = as_object(line.get("request")), as_object(line.get("reply"))
                said = output_items(reply)
                is_it = line.get("path") == ROUTE and len(input_items(asked)) == num_items
                if is_it and said and _is_alike(said, turn):
                    found = {
                        **{"source": str(path), "notes": [], "left_out": 0, "figures": {}},
                        **{"request": asked, "response": reply},
                    }
    return found


def _is_alike(said: Sequence[Any], turn: Sequence[Any]) -> bool:
    """Whether the items of a reply are the first ones of a turn, whatever else is in them."""
    names = ("type", "name", "arguments", "content")
    return len(said) <= len(turn) and all(
        as_object(one).get(name) == as_object(other).get(name)
        for one, other in zip(said, turn, strict=False)
        for name in names
    )
