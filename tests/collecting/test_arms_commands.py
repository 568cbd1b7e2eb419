"""Arms through the commands: configurations that are shipped, exports, pairs, a kill."""

import json
import signal
from pathlib import Path
from typing import Any

import orjson
import pytest
from endpoint import endpoint, says
from support import asked, read_jsonl, write_jsonl
from workplace import ROOT, Workplace

import rollout_kit as rk
from rollout_kit.errors import ConfigError

SIMULATED = """
policy_model:
  responses_api_models:
    simulated_model:
      entrypoint: app.py
      answer: text
      text: "Step one.\\n{marker} 72"
"""


@pytest.fixture
def place(tmp_path: Path) -> Any:
    with endpoint(says(lambda body: "")) as model:
        yield Workplace(tmp_path, model)


def prepare(place: Workplace, marker: str) -> None:
    """Tasks in the form of GSM8K, and a model that says the answer to the first one."""
    (place.folder / "sim.yaml").write_text(SIMULATED.replace("{marker}", marker))
    status, said = place.run(
        *("prepare_data", f"+config_paths=[{ROOT}/configs/gsm8k.yaml]"),
        *("+mode=example_validation", "+output_dirpath=data"),
    )
    assert status == 0, said


@pytest.mark.parametrize(
    ("name", "number", "marker"),
    [
        ("coherence_math", 11, "Answer:"),
        pytest.param("coherence_math_8", 8, "####", marks=pytest.mark.slow),
    ],
)
def test_the_shipped_arms_run_from_one_command(
    name: str, number: int, marker: str, place: Workplace
) -> None:
    prepare(place, marker)
    argv = (
        *("collect_rollouts", f"+config_paths=[{ROOT}/configs/{name}.yaml,sim.yaml]"),
        *("+input_jsonl_fpath=data/example.jsonl", "+output_jsonl_fpath=out/rollouts.jsonl"),
    )
    status, said = place.run(*argv, "+limit=3")
    assert status == 0, said
    assert f"Plan: 3 tasks × {number} arms = {3 * number} rollouts" in said
    lines = place.lines()
    seeds = {line["rollout"]["arm"]["id"]: line["rollout"]["arm"]["seed"] for line in lines}
    assert seeds["direct_0"] == 42 and seeds["direct_3"] == 45 and seeds["reflect_3"] == 103
    assert len(seeds) == number
    for line in lines:
        params = line["responses_create_params"]
        assert params["raw_prompt"] is True and line["question"] in params["input"]
        assert params["input"].endswith("Solution:") and params["max_output_tokens"] == 512
        assert (line["reward"] == 1.0) == (line["expected_answer"] == "72")
    metrics = json.loads((place.folder / "out/rollouts_aggregate_metrics.json").read_text())
    assert len(metrics["arms"]) == number
    status, said = place.run(*argv)
    assert status == 0 and f"{3 * number} done" in said, said
    assert len(place.lines()) == 8 * number
    checks_exports(place, number)


def checks_exports(place: Workplace, number: int) -> None:
    """The grouped view has one line for each task; prompts of raw texts stay texts."""
    status, said = place.run(
        "export", "out/rollouts.jsonl", "+format=grouped", "+output_fpath=g.jsonl"
    )
    assert status == 0, said
    groups = read_jsonl(place.folder / "g.jsonl")
    assert len(groups) == 8 and {len(each["trajectories"]) for each in groups} == {number}
    names = [each["arm_name"] for each in groups[0]["trajectories"]]
    assert len(set(names)) == number
    argv = ("export", "out/rollouts.jsonl", "+output_fpath=x.jsonl")
    status, said = place.run(*argv, "+format=trl_kto", "+where=arm == 'direct_1'")
    assert status == 0, said
    rows = read_jsonl(place.folder / "x.jsonl")
    assert len(rows) == 8 and rows[0]["prompt"].endswith("Solution:")
    assert rows[0]["completion"].startswith("Step one.") and rows[0]["arm"] == "direct_1"
    status, said = place.run(*argv, "+format=llamafactory_sft")
    assert status == 1 and "its prompt is raw text, and the format applies a chat" in said
    status, said = place.run(*argv, "+format=trl_grpo")
    prompts = [row["prompt"] for row in read_jsonl(place.folder / "x.jsonl")]
    styles = {8: 2, 11: 5}[number]
    assert status == 0 and len(prompts) == len(set(prompts)) == 8 * styles


ARMS = """
- {id: "calm_{i}", vary: {temperature: [0.1, 0.2]}, prompt: {system: Be calm., user: "{question}"}}
- {id: keen, temperature: 0.9, seed: derived}
"""


def few_tasks(place: Workplace, number: int) -> None:
    rows = [
        {
            "responses_create_params": {"input": [{"role": "user", "content": f"q{each}"}]},
            "expected": f"q{each}",
            "question": f"q{each}",
        }
        for each in range(number)
    ]
    write_jsonl(place.folder / "tasks.jsonl", rows)
    (place.folder / "arms.yaml").write_text(ARMS)


def test_a_run_that_was_killed_continues(place: Workplace) -> None:
    few_tasks(place, 40)
    place.model.behaviour = says(asked)
    argv = place.collect_argv("+arms=arms.yaml", "+num_samples_in_parallel=2")
    process = place.start("collect_rollouts", *argv)
    place.wait_for(15)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    status, said = place.collect("+arms=arms.yaml")
    assert status == 0 and "40 tasks × 3 arms = 120 rollouts" in said, said
    keys = [
        (line["rollout"]["arm"]["id"], line["question"], line["rollout"]["rollout_index"])
        for line in place.lines()
    ]
    assert len(keys) == len(set(keys)) == 120


def test_an_ng_run_serves_arms(place: Workplace) -> None:
    few_tasks(place, 3)
    place.model.behaviour = says(asked)
    with (place.folder / "run.yaml").open("a") as file:
        file.write("arms: arms.yaml\n")
    with place.ng_run() as (_, port, _):
        argv = (
            *("collect_rollouts", f"+head_server.port={port}", "+agent_name=echo_agent"),
            *("+input_jsonl_fpath=tasks.jsonl", "+output_jsonl_fpath=out/rollouts.jsonl"),
        )
        status, said = place.run(*argv)
        assert status == 0 and "3 tasks × 3 arms = 9 rollouts" in said, said
        status, said = place.run(*argv, "+arms=[{id: other}]")
        assert status == 0 and "3 tasks × 1 arm = 3 rollouts" in said, said
        status, said = place.run(*argv, "+arms=null")
        assert status == 0 and "3 tasks × 1 repeat = 3 rollouts" in said, said
    assert len(place.lines()) == 15


def test_an_estimate_draws_from_all_arms(place: Workplace) -> None:
    few_tasks(place, 20)
    place.model.behaviour = says(asked)
    argv = place.collect_argv("+arms=arms.yaml", "+num_canary=30")
    status, said = place.run("estimate", *argv)
    assert status == 0 and "Canary: 30 rollouts of 60, drawn at random" in said, said
    arms = {line["rollout"]["arm"]["id"] for line in place.lines()}
    assert arms == {"calm_0", "calm_1", "keen"}
    status, said = place.collect("+arms=arms.yaml")
    assert status == 0 and "30 done" in said and len(place.lines()) == 60


def test_pairs_name_the_arms_of_both_sides(place: Workplace) -> None:
    few_tasks(place, 4)

    def answer(body: Any) -> str:
        return asked(body) if body["temperature"] == 0.9 else "wrong"

    place.model.behaviour = says(answer)
    assert place.collect("+arms=arms.yaml")[0] == 0
    argv = ("out/rollouts.jsonl", "+output_fpath=pairs.jsonl", "+format=trl_dpo")
    status, said = place.run("pairs", *argv, "+rules=[correctness]", "+dedupe_pairs=false")
    assert status == 0, said
    pairs = read_jsonl(place.folder / "pairs.jsonl")
    assert {(each["chosen_arm"], each["rejected_arm"]) for each in pairs} == {
        ("keen", "calm_0"),
        ("keen", "calm_1"),
    }
    assert [message["role"] for message in pairs[0]["prompt"]] == ["user"]  # the chosen one's


def test_validation_checks_arms(place: Workplace) -> None:
    few_tasks(place, 1)
    status, said = place.run("validate", "+config_paths=[run.yaml]", "+arms=arms.yaml")
    assert status == 0 and "3 arms: calm_0, calm_1, keen" in said, said
    (place.folder / "arms.yaml").write_text("[{id: a, temprature: 1}]")
    status, said = place.run("validate", "+config_paths=[run.yaml]", "+arms=arms.yaml")
    assert status == 1 and "arms.yaml: arm 'a': unknown key 'temprature'" in said, said


def test_defaults_beside_arms_are_named(place: Workplace) -> None:
    few_tasks(place, 1)
    with (place.folder / "run.yaml").open("a") as file:
        file.write("arms: [{id: a}]\ndefaults: {temperature: 0.5}\n")
    status, said = place.run("validate", "+config_paths=[run.yaml]")
    assert status == 1 and "write  arms: {defaults: …, arms: […]}" in said, said


def test_arms_of_the_python_api(place: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    few_tasks(place, 3)
    place.model.behaviour = says(asked)
    monkeypatch.chdir(place.folder)
    tasks = map(orjson.loads, (place.folder / "tasks.jsonl").read_bytes().splitlines())
    arms = [{"id": "plain"}, {"id": "warm", "temperature": 1.2, "tags": {"probe": "A"}}]
    run = rk.collect_sync("run.yaml", list(tasks), output="out.jsonl", arms=arms)
    found = [each for each in run if isinstance(each, rk.Rollout)]
    assert (
        sorted(each.info.arm.id for each in found if each.info.arm) == ["plain"] * 3 + ["warm"] * 3
    )
    assert run.metrics and run.metrics["arms"]["warm"]["rollouts"] == 3
    again = [each.info.arm for each in rk.load("out.jsonl")]
    assert {(each.id, each.tags.get("probe")) for each in again if each} == {
        ("plain", None),
        ("warm", "A"),
    }
    with pytest.raises(ConfigError, match="two arms are called 'plain'"):
        list(rk.collect_sync("run.yaml", "tasks.jsonl", arms=[arms[0]] * 2))
