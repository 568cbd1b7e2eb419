"""Harbor's jobs: a folder for each trial, with its result and its agent's trajectory."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..reading import parse_line, read_whole
from ..responses import as_object
from ..types import JsonObject
from . import atif
from .foreign import Damaged, Foreign, count_in, number_in, rest_of, seconds_between

NAME = "harbor"

RESULT = "result.json"

READ = (
    *("task_name", "agent_info", "verifier_result", "exception_info", "started_at", "finished_at"),
    "agent_execution",
)


def is_trial(folder: Path) -> bool:
    """Whether a folder is one of a trial."""
    return (folder / RESULT).is_file() and "trial_name" in _read(folder / RESULT)


def _read(path: Path) -> JsonObject:
    """The JSON object in a file; empty if it is none."""
    return parse_line(read_whole(path)) or {}


def read_trial(folder: Path) -> Foreign:
    """One trial; Damaged if its trajectory is malformed."""
    result = _read(folder / RESULT)
    found = _read_trajectory(folder)
    agent = as_object(result.get("agent_info"))
    found.name = str(result.get("task_name"))
    found.fields |= {"task_name": found.name}
    found.agent = str(agent.get("name") or NAME)
    model = as_object(agent.get("model_info"))
    named = [str(model[each]) for each in ("provider", "name") if model.get(each)]
    found.model = "/".join(named) or found.model
    rewards = as_object(as_object(result.get("verifier_result")).get("rewards"))
    found.reward, scores = _read_rewards(rewards)
    found.scores |= scores
    ran = as_object(result.get("agent_execution"))
    start = result.get("started_at")
    found.known |= {
        "started_at": start or found.known.get("started_at"),
        "duration_s": seconds_between(start, result.get("finished_at")),
        "agent_s": seconds_between(ran.get("started_at"), ran.get("finished_at")),
    }
    failed = as_object(result.get("exception_info"))
    if failed:
        kind, said = failed.get("exception_type"), failed.get("exception_message")
        found.error = f"{kind}: {said}"
    totals = as_object(result.get("agent_result"))
    asked, said = (count_in(totals.get(f"n_{each}_tokens")) for each in ("input", "output"))
    if found.usage is None and asked is not None and said is not None:
        found.usage = {"input_tokens": asked, "output_tokens": said, "total_tokens": asked + said}
    if (cost := number_in(totals.get("cost_usd"))) is not None:
        found.known.setdefault("cost_usd", cost)
    found.kept = {**({"trajectory": found.kept} if found.kept else {}), **rest_of(result, *READ)}
    if failed:
        found.kept["exception_info"] = failed
    return found


def _read_trajectory(folder: Path) -> Foreign:
    """The agent's trajectory, those of several steps joined; without one, an empty rollout."""
    paths = [folder / "agent" / "trajectory.json"]
    if not paths[0].is_file():
        paths = sorted((folder / "steps").glob("*/agent/trajectory.json"))
    documents = [_read(path) for path in paths if path.is_file()]
    if not documents:
        return Foreign(NAME, [], [])
    if not all(map(atif.is_document, documents)):
        raise Damaged("its trajectory.json is no ATIF trajectory")
    [first, *others] = documents
    if others:
        steps = [step for each in documents for step in each["steps"]]
        first = {**first, "steps": steps, "final_metrics": None}
    return atif.read_document(first)


def _read_rewards(rewards: Mapping[str, Any]) -> tuple[float | None, JsonObject]:
    """The reward, which is the one of that name or the only one, and all others."""
    numbers = {
        name: number for name, each in rewards.items() if (number := number_in(each)) is not None
    }
    reward = numbers.get("reward")
    if reward is None and len(numbers) == 1:
        [reward] = numbers.values()
    return reward, {name: value for name, value in numbers.items() if name != "reward"}
