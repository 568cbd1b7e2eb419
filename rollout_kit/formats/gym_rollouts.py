"""NeMo Gym's rollouts, 0.5 to 0.7, with the trajectory of agents that 0.7 adds."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..responses import as_object
from ..serving.nemo_gym.episodes import calls_of_policy, ends_of_turns, is_episode
from ..store.nemo_gym import INPUTS, OF_RESULT, OF_RUN, read_rollout, read_tasks
from ..trajectory import ModelCall
from ..types import JsonObject
from .foreign import Damaged, Foreign, count_in, number_in

NAME = "nemo_gym"


def is_line(row: JsonObject) -> bool:
    has_response = isinstance(row.get("responses_create_params"), dict) and "response" in row
    return has_response or ("reward" in row and is_episode(row))


def tasks_beside(path: Path) -> dict[Any, JsonObject]:
    """The rows of the tasks by their index, from the file that NeMo Gym writes beside its output;
    none without that file."""
    beside = path.with_name(path.stem + INPUTS)
    return dict(read_tasks(beside)) if beside.is_file() else {}


def read_line(row: JsonObject, tasks: dict[Any, JsonObject]) -> Foreign:
    """A rollout; Damaged if its response is none."""
    read = read_rollout(row, tasks)
    if read is None:
        raise Damaged("its response has no list of output")
    params = read.row["responses_create_params"]
    scores = {k: v for k, v in read.scores.items() if k != "responses_create_params"}
    not_fields = {"responses_create_params", *scores}
    found = Foreign(
        read.agent,
        params.get("input", []),
        read.response["output"],
        fields={name: read.row[name] for name in read.row if name not in not_fields},
        params={name: value for name, value in params.items() if name not in ("input", "tools")},
        tools=params.get("tools") or [],
        model=str(read.response.get("model") or ""),
        calls=_calls(row),
        reward=number_in(row.get("reward")),
        scores=scores,
        index=count_in(read.index),
        response=read.response,
        id=read.task_id,
    )
    names = (OF_RESULT | OF_RUN) - {"response", "reward", "agent_ref"}
    found.kept = {name: row[name] for name in sorted(names) if name in row}
    return found


def _calls(row: JsonObject) -> list[ModelCall]:
    """The model calls, from a trajectory or from an episode of an environment server."""
    if is_episode(row):
        ends = ends_of_turns(row)
        return [
            _call_of_episode(call, to) for call, to in zip(calls_of_policy(row), ends, strict=True)
        ]
    trajectory = as_object(row.get("ng_trajectory"))
    return [_call(as_object(each)) for each in trajectory.get("model_calls") or []]


def _call_of_episode(call: Mapping[str, Any], to: int) -> ModelCall:
    response = call["response"]
    usage, cut = as_object(response.get("usage")), as_object(response.get("incomplete_details"))
    return ModelCall(
        to=to,
        input=count_in(usage.get("input_tokens")),
        output=count_in(usage.get("output_tokens")),
        finish=str(cut["reason"]) if cut.get("reason") else "stop",
        model=response["model"] if isinstance(response.get("model"), str) else None,
    )


def _call(call: Mapping[str, Any]) -> ModelCall:
    """A model call of its trajectory."""
    tokens, told = as_object(call.get("token_stats")), as_object(call.get("response_metadata"))
    finish, took = told.get("finish_reason"), number_in(call.get("duration_ms"))
    return ModelCall(
        model_s=None if took is None else took / 1000,
        input=count_in(tokens.get("prompt_tokens")),
        cached=count_in(tokens.get("cached_tokens")),
        output=count_in(tokens.get("completion_tokens")),
        finish=finish if isinstance(finish, str) else None,
        model=told["model"] if isinstance(told.get("model"), str) else None,
    )
