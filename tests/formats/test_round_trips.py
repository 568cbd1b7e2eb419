"""200 rollouts are written in each format and read back: nothing is lost that it can hold. The
tools' own loaders read them in marked tests, in their environments: `make test-formats`."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_rollouts import make_line, said, whole_prompts
from peer_pythons import folder_of
from support import read_jsonl, write_jsonl

from rollout_kit.commands.export import export
from rollout_kit.config.keys import ExportConfig
from rollout_kit.errors import ConfigError
from rollout_kit.formats.importing import import_runs


def write_exported(format: str, ending: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        path = folder / f"theirs{ending}"
        words = {"format": format, "output_fpath": path, "inputs": [str(folder / "ours.jsonl")]}
        assert export(ExportConfig.model_validate(words))["left_out"] == {}
        return path

    return write


def write_job(folder: Path) -> Path:
    """A job of Harbor whose agent wrote our trajectories."""
    trajectories = read_jsonl(write_exported("atif", ".jsonl")(folder))
    job = folder / "job"
    for number, trajectory in enumerate(trajectories):
        trial = job / f"task-{number:03}__x"
        (trial / "agent").mkdir(parents=True)
        (trial / "agent/trajectory.json").write_text(json.dumps(trajectory))
        reward = trajectory["extra"]["rollout_kit"]["reward"]
        result = {
            "trial_name": trial.name,
            "task_name": f"task-{number:03}",
            "agent_info": {"name": "agent", "model_info": {"name": "m"}},
            "verifier_result": None if reward is None else {"rewards": {"reward": reward}},
        }
        (trial / "result.json").write_text(json.dumps(result))
    return job


FORMATS = {
    "atif": write_exported("atif", ".jsonl"),
    "inspect": write_exported("inspect", ".eval"),
    "harbor": write_job,
}


@pytest.fixture
def lines(tmp_path: Path) -> list[Any]:
    made = [make_line(number) for number in range(200)]
    write_jsonl(tmp_path / "ours.jsonl", made)
    return made


@pytest.mark.parametrize("format", FORMATS)
def test_two_hundred_rollouts_come_back_as_they_were(
    format: str, lines: list[Any], tmp_path: Path
) -> None:
    found = import_runs([FORMATS[format](tmp_path)], tmp_path / "back.jsonl")
    assert found.of_format == {format: 200}
    for before, after in zip(lines, read_jsonl(tmp_path / "back.jsonl"), strict=True):
        assert said(after) == whole_prompts(said(before))
        for name in ("reward", "length", "expected_answer", "usage"):
            assert after[name] == before[name]
        assert after["rollout"].pop("settings") and before["rollout"].pop("settings")
        assert after["rollout"] == before["rollout"]
        assert after["response"].get("error") == before["response"].get("error")
        asked, given = (each["responses_create_params"] for each in (after, before))
        assert asked == {**given, "input": asked["input"]}


def test_a_log_of_inspect_keeps_arguments_as_they_were_written(tmp_path: Path) -> None:
    line = make_line(2)
    for item, text in zip(line["response"]["output"], ('{"a":  1}', "{broken"), strict=False):
        item["arguments"] = text
    write_jsonl(tmp_path / "ours.jsonl", [line])
    import_runs([FORMATS["inspect"](tmp_path)], tmp_path / "back.jsonl")
    [back] = read_jsonl(tmp_path / "back.jsonl")
    texts = [each["arguments"] for each in back["response"]["output"][:2]]
    assert texts == ['{"a":  1}', "{broken"]


def test_a_log_of_inspect_is_of_one_model(tmp_path: Path) -> None:
    two = [make_line(number) for number in (1, 2)]
    two[1]["rollout"]["model"] = "other"
    write_jsonl(tmp_path / "ours.jsonl", two)
    with pytest.raises(ConfigError, match=r"of agent with the model m and agent with the model"):
        FORMATS["inspect"](tmp_path)
    assert [each.name for each in tmp_path.iterdir() if "eval" in each.name] == []


def test_a_rollout_whose_time_is_none_is_left_out_with_the_reason(tmp_path: Path) -> None:
    two = [make_line(number) for number in (1, 2)]
    two[1]["rollout"]["duration_s"] = 1e300
    write_jsonl(tmp_path / "ours.jsonl", two)
    path = tmp_path / "theirs.eval"
    words = {"format": "inspect", "output_fpath": path, "inputs": [str(tmp_path / "ours.jsonl")]}
    report = export(ExportConfig.model_validate(words))
    assert report["files"] == {str(path): 1}
    assert list(report["left_out"].values()) == [1]


def run_peer(tool: str, *words: Any) -> str:
    python = folder_of(tool) / "python"
    assert python.exists(), "make test-formats installs it"
    done = subprocess.run([python, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.formats
def test_harbor_s_models_accept_them(lines: list[Any], tmp_path: Path) -> None:
    code = (
        "import sys; from harbor.models.trajectories import Trajectory\n"
        "print(sum(1 for line in open(sys.argv[1]) if Trajectory.model_validate_json(line)))"
    )
    assert run_peer("harbor", "-c", code, FORMATS["atif"](tmp_path)) == "200\n"


OF_INSPECT = """
import json, sys
from inspect_ai.log import read_eval_log, read_eval_log_sample_summaries
log = read_eval_log(sys.argv[1])
found = {"status": log.status, "samples": [], "scores": {}}
for score in log.results.scores:
    found["scores"][score.name] = score.metrics["mean"].value
for sample in log.samples:
    said = [each for each in sample.messages if each.role == "assistant"]
    asked = sample.messages[1].content
    found["samples"].append({
        "id": sample.id,
        "calls": [call.id for each in said for call in each.tool_calls or ()],
        "outputs": [each.tool_call_id for each in sample.messages if each.role == "tool"],
        "thoughts": sum(not isinstance(each.content, str) for each in said),
        "images": sum(part.type == "image" for part in asked if not isinstance(part, str)),
        "reward": sample.scores["reward"].value if "reward" in sample.scores else None,
        "events": [each.event for each in sample.events],
        "asked": [len(each.input) for each in sample.events if each.event == "model"],
        "error": sample.error and sample.error.message,
    })
assert len(read_eval_log_sample_summaries(sys.argv[1])) == len(log.samples)
print(json.dumps(found))
"""


@pytest.mark.formats
def test_inspect_reads_its_log_and_makes_a_page_of_it(lines: list[Any], tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    log = FORMATS["inspect"](tmp_path).replace(tmp_path / "logs/theirs.eval")
    found = json.loads(run_peer("inspect", "-c", OF_INSPECT, log))
    assert found["status"] == "success" and len(found["samples"]) == 200
    rewards = [each["reward"] for each in lines if each["reward"] is not None]
    assert found["scores"]["reward"] == pytest.approx(sum(rewards) / len(rewards))
    by_task = {line["rollout"]["task_id"]: line for line in lines}
    for sample in found["samples"]:
        line = by_task.pop(sample["id"])
        output = line["response"]["output"]
        for name, kind in (("calls", "function_call"), ("outputs", "function_call_output")):
            assert sample[name] == [each["call_id"] for each in output if each["type"] == kind]
        assert sample["thoughts"] == sum(each["type"] == "reasoning" for each in output)
        asked = line["responses_create_params"]["input"][1]["content"]
        assert sample["images"] == sum(each["type"] == "input_image" for each in asked)
        assert sample["reward"] == line["reward"]
        assert sample["error"] == (line["response"].get("error") or {}).get("message")
        if "started_at" in line["rollout"]:
            num_turns = line["rollout"]["num_turns"]
            assert sample["events"].count("model") == num_turns == len(sample["asked"])
            assert sample["asked"][0] == 2 and sample["asked"] == sorted(sample["asked"])
            assert sample["events"].count("tool") == len(sample["calls"])
    words = ("view", "bundle", "--log-dir", log.parent, "--output-dir", tmp_path / "page")
    run_peer("inspect", folder_of("inspect") / "inspect", *words)
    assert (tmp_path / "page/index.html").exists()
    assert (tmp_path / "page/logs/theirs.eval").read_bytes() == log.read_bytes()
