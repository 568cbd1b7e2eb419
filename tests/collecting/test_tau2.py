"""τ²-bench by name: its rows, pass^k, the user's model in the table, and a run that is killed."""

import asyncio
import gzip
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support import read_jsonl
from workplace import ROOT

from rollout_kit.api.testing import making, mount
from rollout_kit.collecting.data.benchmarks.origins import fetch_wheel
from rollout_kit.collecting.data.benchmarks.tau2_rows import describe_scenario, read_tau2
from rollout_kit.config.benchmarks.definition import keep_folder
from rollout_kit.errors import ConfigError, RolloutError
from rollout_kit.responses import list_calls, make_response
from rollout_kit.serving.registry import load
from rollout_kit.serving.tools import arguments_of
from rollout_kit.session import Session, entered
from rollout_kit.types import JsonObject

WHEEL = "inspect_evals-0.28.0-py3-none-any.whl"

EXAMPLES = read_jsonl(ROOT / "resources_servers/tau2/data/example.jsonl")

RIGHT_WHEN_EMPTY = {
    "airline": "0 1 4 5 6 10 13 26 28 31 34 36 41 43 45 46 47 48 49",
    "retail": "10 12 25 50 57 65 105",
}
"""Tasks in which nothing has to be changed or said."""


def make_wheel(path: Path, num_tasks: int) -> None:
    """A wheel in the published format, with the actions of the example tasks."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tasks = [make_task(number) for number in range(num_tasks)]
    with zipfile.ZipFile(path, "w") as archive:
        folder = "inspect_evals/tau2/data"
        archive.writestr(f"{folder}/user_simulator/simulation_guidelines.txt", "Play a customer.")
        for desk in ("airline", "retail"):
            own = f"{folder}/domains/{desk}"
            archive.writestr(f"{own}/policy.txt", "Be kind.")
            names = [task["id"] for task in tasks[:-1]]
            archive.writestr(f"{own}/split_tasks.json", json.dumps({"base": names}))
            archive.writestr(f"{own}/tasks.json", json.dumps(tasks))
            database = gzip.compress(json.dumps(EXAMPLES[0]["database"]).encode())
            archive.writestr(f"{own}/db.json.gz", database)


def make_task(number: int) -> JsonObject:
    row = EXAMPLES[number % len(EXAMPLES)]
    instructions = {
        **{"domain": "airline", "reason_for_call": row["user"]["goal"]},
        **{"known_info": "You are Ada.\nYour id is 1.", "unknown_info": None},
        "task_instructions": "Be brief.",
    }
    return {
        "id": str(number),
        "user_scenario": {"persona": None, "instructions": instructions},
        "evaluation_criteria": {
            "actions": row["actions"],
            "communicate_info": row["communicate_info"],
            "nl_assertions": row["nl_assertions"],
        },
    }


SCENARIO = (
    "Instructions:\n\tDomain: airline\n\tReason for call:\n\t\tCancel your reservation.\n"
    "\tKnown info:\n\t\tYou are Ada.\n\t\tYour id is 1.\n\tTask instructions:\n\t\tBe brief."
)


def test_rows_have_the_policy_and_the_scenario(tmp_path: Path) -> None:
    make_wheel(tmp_path / WHEEL, 6)
    rows = list(read_tau2(tmp_path / WHEEL, "airline"))
    assert [row["id"] for row in rows] == ["0", "1", "2", "3", "4"]
    [system] = rows[0]["responses_create_params"]["input"]
    assert "<policy>\nBe kind.\n</policy>" in system["content"]
    assert describe_scenario(make_task(0)["user_scenario"]) == SCENARIO
    assert rows[0]["user"]["instructions"] == (
        f"Play a customer.\n<scenario>\n{SCENARIO}\n</scenario>\n"
    )
    with pytest.raises(ConfigError, match="neither airline nor retail"):
        list(read_tau2(tmp_path / WHEEL, "telecom"))


MODELS = """
policy:
  responses_api_models:
    simulated_model: {answer: text, text: Done., num_tool_turns: 1, latency_s: 0.02}
user_model:
  responses_api_models:
    simulated_model:
      answer: text
      text: "Yes. ###STOP###"
      model_name: the-user
      prices: {input: 1, output: 10}
"""


def start(folder: Path, *words: str, models: str = MODELS) -> "subprocess.Popen[str]":
    (folder / "models.yaml").write_text(models)
    program = str(Path(sys.executable).with_name("ng_collect_rollouts"))
    return subprocess.Popen(
        [program, "+benchmark=tau2_airline", "+config_paths=[models.yaml]", *words],
        cwd=folder,
        env={**os.environ, "XDG_CACHE_HOME": str(folder / "cache")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_a_run_that_is_killed_has_each_key_once(tmp_path: Path) -> None:
    make_wheel(tmp_path / "cache/rollout_kit/benchmarks/packages" / WHEEL, 21)
    output = tmp_path / "results/simulated_model/tau2_airline.jsonl"
    words = ["+num_samples_in_parallel=32"]
    running = start(tmp_path, *words)
    while running.poll() is None:
        if output.exists() and output.read_bytes().count(b"\n") >= 20:
            break
        time.sleep(0.01)
    running.send_signal(signal.SIGKILL)
    running.communicate()
    again = start(tmp_path, *words)
    said, _ = again.communicate()
    assert again.returncode == 0, said
    lines = read_jsonl(output)
    keys = Counter((line["id"], line["_ng_rollout_index"]) for line in lines)
    assert len(keys) == len(lines) == 20 * 4
    assert "Benchmark tau2_airline: pass^1 " in said and "pass^4 " in said
    metrics = json.loads(output.with_name("tau2_airline_aggregate_metrics.json").read_text())
    found = metrics["benchmark"]
    assert found["user_model"] == "the-user"
    total = sum(line["user_cost_usd"] for line in lines)
    assert found["user_usd"] == pytest.approx(total)
    assert [*found["sections"]] == ["pass^1", "pass^2", "pass^3", "pass^4"]
    assert found["sections"]["pass^4"] == found["value"]


def test_without_a_model_for_the_user_it_does_not_start(tmp_path: Path) -> None:
    make_wheel(tmp_path / "cache/rollout_kit/benchmarks/packages" / WHEEL, 3)
    running = start(tmp_path, models=MODELS.partition("user_model")[0])
    said, _ = running.communicate()
    assert running.returncode == 1
    assert "user_simulator.model_server: no instance 'user_model'" in said


async def play(desk: str, rows: list[JsonObject], is_right: bool) -> set[str]:
    """The tasks that get 1 with their right actions, or with none."""
    server, found = load("resources_servers", "tau2"), set[str]()
    async with mount({"tau2": making(server, desk=desk)}) as peers:
        for row in rows:
            items: list[Any] = row["gold_items"] if is_right else []
            with entered(Session()):
                await peers.call("tau2", "/seed_session", row, dict)
                for call in list_calls(items):
                    try:
                        await peers.call("tau2", f"/{call['name']}", arguments_of(call), str)
                    except RolloutError as error:
                        assert error.status != 500, error
                body = {**row, "response": make_response("m", items, None)}
                verdict = await peers.call("tau2", "/verify", body, dict)
            if verdict["reward"] == 1:
                found.add(row["id"])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("desk", ["airline", "retail"])
def test_right_actions_and_none(desk: str) -> None:
    try:
        wheel = fetch_wheel("inspect_evals", "0.28.0", print)
    except ConfigError as error:
        pytest.skip(str(error))
    assert wheel == keep_folder() / "packages" / WHEEL
    rows = list(read_tau2(wheel, desk))
    assert len(rows) == {"airline": 50, "retail": 114}[desk]
    assert asyncio.run(play(desk, rows, True)) == {row["id"] for row in rows}
    assert asyncio.run(play(desk, rows, False)) == {*RIGHT_WHEN_EMPTY[desk].split()}
