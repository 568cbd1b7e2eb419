"""Rollouts of ten turns at an endpoint that checks what comes back: killed once, continued, and
verified again."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

from support import HANG_S, read_jsonl, write_jsonl
from workplace import ROOT

from rollout_kit.responses import function_call_item, make_response, message_item
from rollout_kit.types import JsonObject

TURNS = 10
"""Model calls of a rollout, which its answer has to name."""

CALCULATOR = "resources_servers/calculator/configs/calculator.yaml"


MODEL = """
policy_model:
  responses_api_models:
    openai_model:
      {{openai_base_url: "{url}", openai_api_key: k, openai_model: m, upstream_api: responses}}
"""


def add_one(body: dict[str, Any]) -> tuple[int, Any]:
    """The answer of an endpoint: the next call, or the number that is reached."""
    done = sum(item.get("type") == "function_call" for item in body["input"])
    used = {"input_tokens": 5, "output_tokens": 2, "total_tokens": 7}
    if done == TURNS - 1:
        return 200, make_response("m", [message_item(str(TURNS))], used)
    call = function_call_item("add", json.dumps({"a": done, "b": 1}), f"c{done}")
    return 200, make_response("m", [call], used)


def count_command(folder: Path, model: str, *words: str) -> list[str]:
    """Three rollouts with the model of a YAML file, into `rollouts.jsonl`."""
    rows = [
        {"responses_create_params": {"input": f"Row {n}: count."}, "expected_answer": TURNS}
        for n in range(3)
    ]
    write_jsonl(folder / "tasks.jsonl", rows)
    return [
        str(Path(sys.executable).with_name("ng_collect_rollouts")),
        f"+config_paths=[{CALCULATOR},{model}]",
        "+agent_name=calculator_simple_agent",
        f"+input_jsonl_fpath={folder / 'tasks.jsonl'}",
        f"+output_jsonl_fpath={folder / 'rollouts.jsonl'}",
        "+num_samples_in_parallel=3",
        *words,
    ]


def run_through_a_kill(
    folder: Path, command: list[str], is_held: Event, release: Callable[[], object]
) -> list[JsonObject]:
    """The rollouts of a command that is killed once the endpoint holds a request, and continued."""
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
        assert is_held.wait(HANG_S)
        process.send_signal(signal.SIGKILL)
    release()
    _run(command)
    lines = read_jsonl(folder / "rollouts.jsonl")
    assert [line["reward"] for line in lines] == [1.0] * 3
    assert any("resumed_turns" in line["rollout"] for line in lines)
    return lines


def verify_again(folder: Path, lines: list[JsonObject]) -> None:
    """Verify the stored rollouts again: responses and rewards stay as they are."""
    again = [
        str(Path(sys.executable).with_name("ng_reverify")),
        f"+config_paths=[{CALCULATOR}]",
        f"+input_jsonl_fpath={folder / 'rollouts.jsonl'}",
        f"+output_jsonl_fpath={folder / 'again.jsonl'}",
    ]
    _run(again)
    for before, after in zip(lines, read_jsonl(folder / "again.jsonl"), strict=True):
        assert after["response"] == before["response"] and after["reward"] == 1.0


def _run(command: list[str]) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HANG_S)
    assert done.returncode == 0, done.stdout + done.stderr
