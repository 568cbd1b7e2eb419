"""Rows of the environment `shell` for tasks in Harbor's folders."""

import base64
import json
import shlex
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ...errors import ConfigError
from ...types import JsonObject
from .. import registry
from ..sandbox.roots.packing import pack_small
from .task_folder import HarborStep, HarborTask, find_tasks, read_task
from .task_toml import fill_values

SERVER = "shell"

FINISH_STEP = "finish_step"

PART = 60_000
"""Characters of a call that lays out a solution."""

GOLD_S = 600.0
"""Time limit of a solution: the most that the server's commands may have."""

STEPS = (
    "\n\nThis is step 1 of {number}. When it is done, call finish_step. It returns what to do next."
)


def read_collection(
    folders: list[str], roots: Mapping[str, str], cwd: Path, allowed: list[str] | None = None
) -> Iterator[HarborTask]:
    """The tasks at or below each folder; ConfigError if a folder has none."""
    for given in folders:
        folder = cwd / Path(given).expanduser()
        if not folder.is_dir():
            raise ConfigError(f"harbor_tasks: there is no folder {given}")
        found = find_tasks(folder)
        if not found:
            raise ConfigError(f"harbor_tasks: {given} has no folder with a task.toml")
        for each in found:
            yield read_task(each, roots, allowed)


def make_row(task: HarborTask, *, with_gold: bool = False) -> JsonObject:
    """The row of a task. `with_gold`: with calls that run its solution, if it has one."""
    instruction, params = task.steps[0].instruction, dict[str, Any]()
    if len(task.steps) > 1:
        instruction += STEPS.format(number=len(task.steps))
        params["tools"] = list_all_tools()
    row: JsonObject = {
        "task_id": task.name,
        "responses_create_params": {
            "input": [{"role": "user", "content": instruction}],
            **params,
        },
        "verifier": {"kind": "harbor", "folder": str(task.folder), "digest": task.digest},
    }
    if task.license:
        row["license"] = task.license
    if with_gold and all(step.solution for step in task.steps):
        row["gold_items"] = make_gold(task)
    return row


@cache
def list_all_tools() -> list[JsonObject]:
    """All tools of the shell, `finish_step` too."""
    return [tool.schema for tool in registry.load("resources_servers", SERVER).tools.values()]  # type: ignore[attr-defined]


def make_gold(task: HarborTask) -> list[JsonObject]:
    """The items of an answer that runs the solution of each step."""
    calls: list[tuple[str, JsonObject]] = []
    for step in task.steps:
        calls += _solve(step, fill_values(task.toml.solution.env))
        if len(task.steps) > 1:
            calls.append((FINISH_STEP, {}))
    items: list[JsonObject] = []
    for number, (name, arguments) in enumerate(calls):
        call = {"type": "function_call", "id": f"fc_{number}", "call_id": f"call_{number}"}
        call |= {"name": name, "arguments": json.dumps(arguments), "status": "completed"}
        output = {"type": "function_call_output", "call_id": f"call_{number}", "output": ""}
        items += [call, output]
    text = {"type": "output_text", "text": "It is done.", "annotations": []}
    message = {"type": "message", "role": "assistant", "id": "msg_0", "status": "completed"}
    return [*items, {**message, "content": [text]}]


def _solve(step: HarborStep, environment: Mapping[str, str]) -> Iterator[tuple[str, JsonObject]]:
    """Calls that lay out a solution and run it. The folder is gone before anything is verified."""
    assert step.solution is not None
    packed = base64.b64encode(pack_small(step.solution)).decode()
    place = "/tmp/.solution"
    yield "exec", {"command": f"rm -f {place}"}
    for start in range(0, len(packed), PART):
        part = packed[start : start + PART]
        yield "exec", {"command": f"printf %s {part} >> {place}"}
    given = " ".join(f"{name}={shlex.quote(text)}" for name, text in environment.items())
    command = (
        f"mkdir -p /tmp/.solved && base64 -d {place} | tar -xz -C /tmp/.solved && rm {place}"
        " && { ln -sfn /tmp/.solved /solution 2> /dev/null || true; }"
        f" && env {given} DEBIAN_FRONTEND=noninteractive bash /tmp/.solved/{step.solve};"
        ' status=$?; rm -rf /tmp/.solved /solution 2> /dev/null; exit "$status"'
    )
    timeout_s = min(step.timeout_s or GOLD_S, GOLD_S)
    yield "exec", {"command": command, "timeout_s": timeout_s}
