"""NeMo Gym's rollouts, 0.5 to 0.7, with the trajectory of agents that 0.7 adds."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..responses import as_object
from ..store.nemo_gym import INPUTS, NO_AGENT, OF_RESULT, OF_RUN, divide, read_tasks, request_of
from ..store.tasks import agent_name_of, task_id_of
from ..trajectory import ModelCall
from ..types import JsonObject
from .foreign import Damaged, Foreign, count_in, number_in

NAME = "nemo_gym"

OF_IDENTITY = OF_RUN | OF_RESULT | {"responses_create_params"}


def is_line(row: JsonObject) -> bool:
    return isinstance(row.get("responses_create_params"), dict) and "response" in row


def tasks_beside(path: Path) -> dict[Any, JsonObject]:
    """The rows of the tasks by their index, from the file that NeMo Gym writes beside its output;
    none without that file."""
    beside = path.with_name(path.stem + INPUTS)
    return dict(read_tasks(beside)) if beside.is_file() else {}


def read_line(row: JsonObject, tasks: dict[Any, JsonObject]) -> Foreign:
    """A rollout; Damaged if its response is none."""
    response = row["response"]
    if not isinstance(response, dict) or not isinstance(response.get("output"), list):
        raise Damaged("its response has no list of output")
    task = tasks.get(row.get("_ng_task_index"))
    fields = {name: row[name] for name in row if name not in OF_RUN | OF_RESULT}
    params = row["responses_create_params"]
    own, scores = divide(task, fields)
    trajectory = as_object(row.get("ng_trajectory"))
    found = Foreign(
        str(agent_name_of(row) or NO_AGENT),
        params.get("input", []),
        response["output"],
        fields={name: own[name] for name in own if name not in OF_IDENTITY and name not in scores},
        params={name: value for name, value in params.items() if name not in ("input", "tools")},
        tools=params.get("tools") or [],
        model=str(response.get("model") or ""),
        calls=[_call(as_object(each)) for each in trajectory.get("model_calls") or []],
        reward=number_in(row.get("reward")),
        scores={k: v for k, v in scores.items() if k != "responses_create_params"},
        index=count_in(row.get("_ng_rollout_index")),
        response=response,
        id=task_id_of(request_of(fields) if task is None else task),
    )
    names = (OF_RESULT | OF_RUN) - {"response", "reward", "agent_ref"}
    found.kept = {name: row[name] for name in sorted(names) if name in row}
    return found


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
