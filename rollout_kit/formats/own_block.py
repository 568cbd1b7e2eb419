"""What another tool's format has no field for: our exports keep it under our name, and our readers
take it from there."""

from collections.abc import Mapping
from typing import Any

from ..responses import as_object
from ..store.lines import row_of
from ..trajectory import read_turns
from ..types import JsonObject, Rollout
from .foreign import Foreign, count_in, number_in

OURS = "rollout_kit"
"""The name under which it stands."""

NOT_SHOWN = ("turns", "task_id", "scope", "rollout_index", "scores")


def keep_own(rollout: Rollout) -> JsonObject:
    """The block of a rollout that is written."""
    line, block = rollout.line, rollout.line["rollout"]
    params = as_object(line.get("responses_create_params"))
    fields = row_of(line)
    fields.pop("responses_create_params", None)
    error = as_object(rollout.response.get("error")).get("message")
    return {
        "reward": rollout.reward,
        "scores": {name: line[name] for name in rollout.info.scores if name in line},
        "fields": fields,
        "params": {name: params[name] for name in params.keys() - {"input", "tools"}},
        "task_id": rollout.key.task_id,
        "rollout_index": rollout.key.rollout_index,
        "known": {name: block[name] for name in block if name not in NOT_SHOWN},
        "turns": block.get("turns"),
        "error": error,
    }


def restore_own(found: Foreign, ours: Mapping[str, Any]) -> None:
    """Set what a block holds; nothing without one."""
    if not ours:
        return
    found.fields = dict(as_object(ours.get("fields")))
    found.reward, found.scores = number_in(ours.get("reward")), dict(as_object(ours.get("scores")))
    found.index, found.id = count_in(ours.get("rollout_index")), ours.get("task_id")
    found.params, found.error = dict(as_object(ours.get("params"))), ours.get("error")
    found.known |= as_object(ours.get("known"))
    if turns := ours.get("turns"):
        found.calls = read_turns(turns)
