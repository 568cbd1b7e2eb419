"""ng_check_rollouts: what NeMo Gym's own checks find in its files, and the same in ours."""

import json
from pathlib import Path
from typing import Any

import pytest
from claims import assert_prints
from command import as_function
from support import read_jsonl, write_jsonl

from benchmarks.agreement.health import compare
from rollout_kit.api.testing import text_response
from rollout_kit.commands import gym
from rollout_kit.responses import function_call_item, function_call_output, message_item
from rollout_kit.trajectory import ModelCall, pack_turns

command = as_function("ng_check_rollouts")

FOLDER = Path(__file__).parent / "health"
"""Broken rollouts and the findings of NeMo Gym 0.7.0, from `benchmarks.agreement.health`."""


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        command([*words])
    return int(ended.value.code or 0)


def test_nemo_gym_finds_the_same() -> None:
    assert compare(FOLDER) == []


def line(task: int, index: int = 0, **changes: Any) -> dict[str, Any]:
    """A rollout of two turns in which no check finds anything."""
    output = [
        function_call_item("add", "{}", "c1"),
        function_call_output("c1", "4"),
        message_item("It is 4."),
    ]
    calls = [
        ModelCall(to=2, start_s=0.0, input=10, output=5, finish="tool_calls", chain=0),
        ModelCall(to=3, start_s=1.0, input=20, output=7, finish="stop", chain=0),
    ]
    for number, change in changes.pop("calls", {}).items():
        calls[number] = calls[number]._replace(**change)
    response = text_response("It is 4.")
    response |= {
        "output": changes.pop("output", output),
        "usage": {"input_tokens": 30, "output_tokens": 12, "total_tokens": 42},
        **changes.pop("response", {}),
    }
    block = {"task_id": f"task_{task}", "scope": "", "rollout_index": index, "settings": "s"}
    return {
        "kind": "rollout",
        "schema": 1,
        "agent_ref": {"name": "solver"},
        "reward": 1.0,
        "response": response,
        "rollout": {**block, "turns": pack_turns(calls), **changes},
    }


EMPTY = message_item(" ")

BROKEN = [
    ({"output": []}, {"trajectory_capture_mismatch"}),
    ({"output": [], "turns": None}, {"rollout_missing_agent_turns", "agent_turn_hollow"}),
    (
        {"output": [*line(0)["response"]["output"][:2], EMPTY]},
        {"agent_turn_hollow"},
    ),
    (
        {
            "output": [*line(0)["response"]["output"][:2], EMPTY],
            "calls": {1: {"finish": "max_output_tokens"}},
        },
        {"agent_turn_hollow", "model_call_runaway_generation"},
    ),
    (
        {"calls": {1: {"output": 0}}},
        {"model_call_zero_completion_tokens", "rollout_token_count_mismatch"},
    ),
    ({"calls": {0: {"input": None}}}, {"model_call_missing_token_counts"}),
    ({"calls": {0: {"input": 11}}}, {"rollout_token_count_mismatch"}),
    (
        {"response": {"status": "failed"}},
        {"model_call_failed", "rollout_ended_on_failed_model_call"},
    ),
    ({"calls": {0: {"finish": "error"}}}, {"model_call_failed"}),
    ({}, set()),
]


@pytest.mark.parametrize(("changes", "names"), BROKEN)
def test_what_is_found_in_a_rollout_of_ours(
    changes: dict[str, Any], names: set[str], tmp_path: Path
) -> None:
    path = write_jsonl(tmp_path / "rollouts.jsonl", [line(0, **changes)])
    assert run(str(path), f"+verdicts_fpath={tmp_path / 'verdicts.jsonl'}") == 0
    [verdict] = read_jsonl(tmp_path / "verdicts.jsonl")
    assert {found["check"] for found in verdict["findings"]} == names
    assert (verdict["verdict"] == "unhealthy") is bool(names)


def test_a_rollout_without_turns_is_unobserved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_jsonl(tmp_path / "rollouts.jsonl", [line(0, turns=None)])
    assert run(str(path), "+json=true") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["verdicts"] == {"healthy": 0, "unhealthy": 0, "unobserved": 1}
    assert found["checks"]["model_call_failed"]["unobserved"] == 1


def test_copies_torn_lines_and_whole_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").mkdir()
    hollow = [*line(0)["response"]["output"][:2], EMPTY]
    lines = [line(task, index) for task in range(3) for index in range(4)]
    lines += [line(3, index, output=hollow) for index in range(4)]
    lines.append(lines[0])
    path = write_jsonl(tmp_path / "results/rollouts.jsonl", lines)
    with path.open("a") as file:
        file.write('{"kind": "rollout", "sch')
    assert run("results/rollouts.jsonl") == 0
    shown = capsys.readouterr().out
    assert_prints("docs/health.md", "18 rollouts", shown)
    assert run("results/rollouts.jsonl", "+max_unhealthy_fraction=0.1") == 1
    assert "38.9% of the rollouts are unhealthy; allowed are 10.0%" in capsys.readouterr().err
    ignored = "agent_turn_hollow,record_unreadable,rollout_duplicate_identity"
    assert run("results/rollouts.jsonl", f"+ignore=[{ignored}]") == 0
    assert "no check has found anything" in capsys.readouterr().out


def test_failures_are_counted_by_their_kind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_jsonl(tmp_path / "rollouts.jsonl", [line(0)])
    about = [{"class": "VerifyError", "failure_kind": "judge_failed"}] * 2 + [
        {"class": "TaskError"}
    ]
    head = {"kind": "failure", "schema": 1, "agent_ref": {"name": "a"}, "_ng_rollout_index": 0}
    rollout = {"task_id": "0" * 16, "scope": "", "rollout_index": 0}
    (tmp_path / "rollouts.d").mkdir()
    write_jsonl(
        tmp_path / "rollouts.d/failures.jsonl",
        [{**head, "_ng_task_index": 0, "rollout": rollout, "failure": each} for each in about],
    )
    assert run(str(path)) == 0
    said = capsys.readouterr().out
    assert "3 rollouts failed and cannot be checked" in said and "2 judge_failed, 1 Task" in said


def test_a_check_that_does_not_exist(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_jsonl(tmp_path / "rollouts.jsonl", [line(0)])
    assert run(str(path), "+ignore=[agent_turn_holow]") == 1
    assert "did you mean 'agent_turn_hollow'" in capsys.readouterr().err
    assert run() == 1
    assert "name a file of rollouts" in capsys.readouterr().err


def test_in_the_words_of_nemo_gym(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_jsonl(tmp_path / "rollouts.jsonl", [line(0)])
    with pytest.raises(SystemExit) as ended:
        gym.main(["eval", "health-check", str(path)])
    assert not ended.value.code
    assert "no check has found anything" in capsys.readouterr().out
