"""Many rollouts of programs of others as they are, and many kills: `make test-harness-whole`.

An endpoint outside gives the commands and keeps a log, which is compared with what was recorded.
"""

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from endpoint import Endpoint, endpoint
from support import NO_NAMESPACES, eventually, may_isolate, read_jsonl, write_jsonl
from test_harness_runs import check_nothing_is_left, leaving_nothing
from test_harness_runs import run as run_to_its_end
from test_real_harnesses import DONE, count_stored
from workplace import ROOT

from rollout_kit.responses import content_texts, function_call_item, make_response, message_item
from rollout_kit.types import JsonObject

pytestmark = [
    pytest.mark.harness,
    pytest.mark.skipif(not may_isolate(), reason=NO_NAMESPACES),
    pytest.mark.skipif("HARNESS_WHOLE" not in os.environ, reason="make test-harness-whole"),
]

USED = {"input_tokens": 5, "output_tokens": 2, "total_tokens": 7}

NUM_ROLLOUTS = {"mini_swe_agent": 200, "codex": 40, "claude_code": 40, "opencode": 40, "pi": 40}


class Log:
    """Gives each task its commands, and keeps a mark of every reply by task."""

    def __init__(self, num_commands: int, last: str) -> None:
        self._num_commands, self._last = num_commands, last
        self._number = count()
        self.marks: Counter[str] = Counter()
        self.num_aside = 0

    def answer(self, body: JsonObject) -> tuple[int, JsonObject]:
        mark = f"mark_{next(self._number):06}"
        tool = next(filter(None, map(_find_command, body.get("tools") or ())), None)
        if tool is None:
            self.num_aside += 1
            return 200, make_response("scripted", [message_item("A title")], USED)
        self.marks[mark] += 1
        done = sum(item.get("type") == "function_call" for item in body["input"])
        if done < self._num_commands:
            command = f"echo {done} >> /work/count; wc -l /work/count"
        elif done == self._num_commands and self._last:
            command = self._last
        else:
            return 200, make_response("scripted", [message_item(mark)], USED)
        name, arguments = tool(command)
        output = [function_call_item(name, json.dumps(arguments), mark)]
        return 200, make_response("scripted", output, USED)


Write = Callable[[str], tuple[str, JsonObject]]


def _find_command(tool: JsonObject) -> Write | None:
    """Writes a call of a tool that takes a command; None for another tool."""
    properties = (tool.get("parameters") or {}).get("properties") or {}
    name = next((each for each in ("command", "cmd") if each in properties), None)
    if name is None:
        return None
    others = dict.fromkeys(tool["parameters"].get("required") or (), "text")
    is_list = properties[name].get("type") == "array"

    def write(command: str) -> tuple[str, JsonObject]:
        given = ["bash", "-c", command] if is_list else command
        return tool["name"], {**others, name: given}

    return write


def write_run(folder: Path, name: str, url: str, num_tasks: int, num_commands: int) -> list[str]:
    expected = {"/work/count": "".join(f"{n}\n" for n in range(num_commands))}
    rows = [
        {
            "responses_create_params": {"input": f"Count, this is number {n}."},
            "verifier": {"kind": "files", "expected": expected},
        }
        for n in range(num_tasks)
    ]
    write_jsonl(folder / "tasks.jsonl", rows)
    keys = {"openai_base_url": url, "openai_api_key": "x", "openai_model": "m"}
    model = {"entrypoint": "app.py", **keys, "upstream_api": "responses"}
    (folder / "model.yaml").write_text(
        json.dumps({"policy_model": {"responses_api_models": {"openai_model": model}}})
    )
    return [
        str(Path(sys.executable).with_name("ng_collect_rollouts")),
        f"+config_paths=[configs/harnesses/{name}.yaml,{folder / 'model.yaml'}]",
        f"+agent_name={name}",
        f"+input_jsonl_fpath={folder / 'tasks.jsonl'}",
        f"+output_jsonl_fpath={folder / 'rollouts.jsonl'}",
        "+num_samples_in_parallel=4",
        "+max_attempts=1",
    ]


def read_marks(line: JsonObject) -> Iterator[str]:
    """The marks of the replies that a line has."""
    for item in line["response"]["output"]:
        if item.get("type") == "function_call":
            yield item["call_id"]
        elif item.get("role") == "assistant":
            yield from content_texts(item["content"])


def serve(log: Log) -> Any:
    return endpoint(log.answer)


@pytest.mark.parametrize("name", NUM_ROLLOUTS)
def test_what_is_recorded_is_what_the_endpoint_gave(name: str, tmp_path: Path) -> None:
    number = NUM_ROLLOUTS[name]
    log = Log(3, DONE if name == "mini_swe_agent" else "")
    with leaving_nothing(tmp_path), serve(log) as point:
        told = run_to_its_end(write_run(tmp_path, name, point.url, number, 3), 3_600)
    lines = read_jsonl(tmp_path / "rollouts.jsonl")
    assert Counter(line["reward"] for line in lines) == {1.0: number}, told
    recorded = Counter(mark for line in lines for mark in read_marks(line))
    assert recorded == log.marks
    gateways = [line["rollout"]["gateway"] for line in lines]
    assert sum(each["calls"] for each in gateways) == len(point.requests)
    assert sum(each["side_calls"] for each in gateways) == log.num_aside


@pytest.mark.parametrize(
    ("name", "num_tasks", "num_kills"), [("mini_swe_agent", 60, 40), ("codex", 20, 20)]
)
def test_kills_cost_few_calls(
    name: str,
    num_tasks: int,
    num_kills: int,
    tmp_path: Path,
    record_property: Callable[[str, Any], None],
) -> None:
    num_commands, draw = 29, random.Random(2)
    log = Log(num_commands, DONE if name == "mini_swe_agent" else "")
    num_calls = num_tasks * (num_commands + 1)
    with leaving_nothing(tmp_path), serve(log) as point:
        command = write_run(tmp_path, name, point.url, num_tasks, num_commands)
        for stop in sorted(draw.sample(range(1, num_calls - 30), num_kills)):
            kill_once_stored(command, tmp_path, stop, point)
        run_to_its_end(command, 3_600)
    lines = read_jsonl(tmp_path / "rollouts.jsonl")
    assert sorted(line["_ng_task_index"] for line in lines) == list(range(num_tasks))
    assert {line["reward"] for line in lines} == {1.0}
    assert not any(line["rollout"]["gateway"].get("diverged_at") for line in lines)
    record_property("calls", len(point.requests))
    record_property("share", len(point.requests) / num_calls)
    assert len(point.requests) <= 1.1 * num_calls


def kill_once_stored(command: list[str], folder: Path, stop: int, point: Endpoint) -> None:
    """Kill a run once so many turns are stored; each turn may take long."""
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        while count_stored(folder) < stop and process.poll() is None:
            seen = len(point.requests)
            eventually(partial(_is_further, point, seen, process))
        process.send_signal(signal.SIGKILL)
    check_nothing_is_left(process.pid)


def _is_further(point: Endpoint, seen: int, process: subprocess.Popen[bytes]) -> bool:
    return len(point.requests) > seen or process.poll() is not None
