"""The findings of `ng_check_rollouts` beside those of NeMo Gym's health checks, over broken
rollouts: `python -m benchmarks.agreement.health`, after `make peers-python`.

`--write=<folder>` keeps the rollouts and NeMo Gym's verdicts, which a test of the suite reads.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

from rollout_kit.analysis.health.health import check_files
from rollout_kit.config.keys import CheckRolloutsConfig

PYTHON = Path(__file__).parents[2] / ".peers/nemo-gym/bin/python"

THEIRS = """
import sys
from pathlib import Path
from nemo_gym.rollout_health import run_health_checks
run_health_checks(Path(sys.argv[1]), output_dir=Path(sys.argv[2]), workers=1)
"""

ROLLOUTS, VERDICTS = "rollouts.jsonl", "rollout_verdicts.jsonl"
SUMMARY = "quality_summary.json"

NUMBER = 80
"""Rollouts that are made, of 20 tasks."""

MODEL = {"type": "responses_api_models", "name": "policy_model"}
OTHER = {"type": "responses_api_models", "name": "judge_model"}

Row = dict[str, Any]
Break = Callable[[Row, Random], Any]


def sound(task: int, index: int, turns: int) -> Row:
    """A rollout in which every check is made and none finds anything."""
    identity = {"task_id": str(task), "rollout_id": f"{task}-{index}"}
    calls = [_call(f"call-{task}-{index}-{number}", number) for number in range(turns)]
    return {
        "_ng_task_index": task,
        "_ng_rollout_index": index,
        "responses_create_params": {"input": "?"},
        "reward": 1.0,
        "response": {
            "output": [{"type": "message", "content": [{"type": "output_text", "text": "4"}]}],
            "usage": {"input_tokens": 10 * turns, "output_tokens": 5 * turns},
        },
        "ng_trajectory": {
            **identity,
            "turns": [_turn(identity, number, call) for number, call in enumerate(calls)],
            "model_calls": calls,
            "gaps": [],
            "invocations": [],
        },
    }


def _call(name: str, number: int) -> Row:
    return {
        "model_call_id": name,
        "started_at": 1.0 + number,
        "response": {"output": [{"type": "message", "content": "text"}]},
        "response_metadata": {
            "response_id": f"resp-{name}",
            "model_ref": dict(MODEL),
            "status_code": 200,
            "response_status": "completed",
            "finish_reason": "stop",
        },
        "token_stats": {"prompt_tokens": 10, "completion_tokens": 5},
    }


def _turn(identity: Row, number: int, call: Row) -> Row:
    return {
        **identity,
        "invocation_id": "root",
        "turn_no": number + 1,
        "timestamp": float(number),
        "step_count": number,
        "answer": f"answer {number}",
        "model_calls": [{"model_call_id": call["model_call_id"]}],
    }


def _record(row: Row) -> Row:
    return row["ng_trajectory"]


def _any_call(row: Row, random: Random) -> Row:
    return random.choice(_record(row)["model_calls"])


def _fail(row: Row, random: Random) -> None:
    call = _any_call(row, random)
    call["response_metadata"] |= random.choice(
        [
            {"status_code": 500},
            {"error_category": "timeout", "status_code": None},
            {"response_status": "failed"},
            {"response_status": "cancelled", "status_code": 200},
        ]
    )


def _unbound_failure(row: Row, random: Random) -> None:
    failed = _call("", 9)
    failed |= {"model_call_id": None, "started_at": random.choice([None, 0.5, 99.0])}
    model = random.choice([MODEL, OTHER, None])
    failed["response_metadata"] = {"status_code": 503, "model_ref": model}
    failed["token_stats"] = {}
    _record(row)["model_calls"].append(failed)


def _cut_off(row: Row, random: Random) -> None:
    call = _any_call(row, random)
    call["response_metadata"]["finish_reason"] = random.choice(["length", "max_output_tokens"])
    call["response"] = random.choice(
        [
            None,
            {"output": []},
            {"output": [{"type": "reasoning", "summary": [{"text": "hm"}]}]},
            {"choices": [{"message": {"content": " "}}]},
            {"choices": [{"message": {"content": "said"}}]},
            {"content": [{"type": "text", "text": ""}]},
        ]
    )


def _refer_by_response(row: Row, random: Random) -> None:
    turn = random.choice(_record(row)["turns"])
    name = turn["model_calls"][0].get("model_call_id")
    model = random.choice([MODEL, OTHER])
    turn["model_calls"] = [{"model_ref": model, "response_id": f"resp-{name}"}]


def _move_to_invocation(row: Row, random: Random) -> None:
    turn = random.choice(_record(row)["turns"])
    _record(row)["invocations"].append(
        {"invocation_id": "root", "model_calls": turn["model_calls"]}
    )
    turn["model_calls"] = []


def _add_gap(row: Row, random: Random) -> None:
    code = random.choice(
        [
            *("turns_unavailable", "model_calls_unavailable", "trajectory_projection_failed"),
            *("turn_model_call_scope_incomplete", "model_call_capture_incomplete"),
            *("model_call_reference_unmatched", "model_call_reference_conflict", "other"),
            "model_call_reference_ambiguous",
        ]
    )
    detail = random.choice([None, "call:lost", "response:a:b:lost"])
    _record(row)["gaps"].append({"code": code, "detail": detail})


BREAKS: list[Break] = [
    lambda row, random: row.pop("ng_trajectory"),
    lambda row, random: _record(row).update(turns=[]),
    lambda row, random: random.choice(_record(row)["turns"]).update(answer=" "),
    lambda row, random: random.choice(_record(row)["turns"]).update(
        answer=[{"type": "function_call", "name": "f"}]
    ),
    lambda row, random: random.choice(_record(row)["turns"]).update(
        answer=None, reasoning_content="thought"
    ),
    lambda row, random: random.choice(_record(row)["turns"]).update(
        answer=[{"type": "message", "content": []}]
    ),
    lambda row, random: _any_call(row, random)["token_stats"].update(completion_tokens=0),
    lambda row, random: _any_call(row, random).update(token_stats={}),
    lambda row, random: _any_call(row, random)["token_stats"].update(prompt_tokens=None),
    lambda row, random: _any_call(row, random)["token_stats"].update(prompt_tokens=-1),
    lambda row, random: row["response"].update(usage=None),
    lambda row, random: row["response"].update(usage={"prompt_tokens": 3, "completion_tokens": 4}),
    lambda row, random: _any_call(row, random).update(model_call_id="another"),
    lambda row, random: _record(row)["model_calls"].append(
        {**deepcopy(_any_call(row, random)), "model_call_id": None}
    ),
    lambda row, random: _record(row)["model_calls"].pop(),
    lambda row, random: _record(row)["turns"].append(dict(_record(row)["turns"][0])),
    lambda row, random: _record(row).update(unknown_field=1),
    lambda row, random: _record(row).update(model_calls=[], turns=[]),
    lambda row, random: [call.update(started_at=None) for call in _record(row)["model_calls"]],
    lambda row, random: [
        call["response_metadata"].update(status_code=429) for call in _record(row)["model_calls"]
    ],
    *(_fail, _unbound_failure, _cut_off, _refer_by_response, _move_to_invocation, _add_gap),
    *(_fail, _unbound_failure, _cut_off),
]


def broken_lines(number: int) -> list[str]:
    """Rollouts with up to three faults, one that is there twice, and lines that are no objects."""
    random = Random(7)
    lines = []
    for each in range(number):
        row = sound(each // 4, each % 4, random.randint(1, 3))
        for fault in random.sample(BREAKS, random.randint(0, 3)):
            try:
                fault(row, random)
            except (KeyError, IndexError):
                continue  # an earlier fault has removed what this one would break
        lines.append(json.dumps(row))
    return [*lines, lines[0], '{"torn": ', "[1, 2]", json.dumps({"reward": 1.0, "response": {}})]


def normalize_theirs(verdict: Row) -> str:
    """What is compared: without the places of unreadable lines, which are named otherwise."""
    findings = [
        {"check": found["check"]}
        if found["check"] == "record_unreadable"
        else {name: found.get(name) or {} for name in ("check", "locator", "detail")}
        for found in verdict["findings"]
    ]
    kept = {"verdict": verdict["verdict"], "findings": sorted(findings, key=json.dumps)}
    task, index = str(verdict["_ng_task_index"]), verdict["_ng_rollout_index"]
    of_line = {"task": "unreadable" if "unreadable" in task else task, "index": index}
    unobserved = sorted(set(verdict["unobserved"]) - {"check_execution_error"})
    return json.dumps({**of_line, **kept, "unobserved": unobserved}, sort_keys=True)


def normalize_ours(verdict: Row) -> str:
    """The same of ours."""
    is_line = not verdict["task"] or not str(verdict["task"]).startswith("line ")
    return normalize_theirs(
        {
            **verdict,
            "_ng_task_index": verdict["task"] if is_line else "unreadable",
            "_ng_rollout_index": verdict["rollout_index"],
        }
    )


def compare(folder: Path) -> list[tuple[str, str]]:
    """What differs over the rollouts and verdicts in a folder: theirs and ours."""
    theirs = [json.loads(line) for line in (folder / VERDICTS).read_text().splitlines()]
    health = check_files(CheckRolloutsConfig(inputs=[str(folder / ROLLOUTS)]))
    ours = sorted(normalize_ours(each.as_json()) for each in health.rollouts)
    found = sorted(map(normalize_theirs, theirs))
    pairs = zip(found, ours, strict=True)
    different = [(one, other) for one, other in pairs if one != other]
    issues = json.loads((folder / SUMMARY).read_text())["run"]["issues"]
    for name, own in health.as_json(0)["checks"].items():
        if own["findings"] != issues.get(name, 0):
            different.append((f"{name}: {issues[name]}", f"{name}: {own['findings']}"))
    return different


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, help="folder that keeps rollouts and verdicts")
    parser.add_argument("--python", type=Path, default=PYTHON, help="that has NeMo Gym")
    given = parser.parse_args()
    folder = given.write
    with tempfile.TemporaryDirectory() as scratch:
        folder = folder or Path(scratch)
        lines = broken_lines(NUMBER)
        (folder / ROLLOUTS).write_text("".join(f"{line}\n" for line in lines))
        subprocess.run([given.python, "-c", THEIRS, folder / ROLLOUTS, folder], check=True)
        different = compare(folder)
    for one, other in different:
        print(f"theirs: {one}\nours:   {other}\n")
    print(f"{len(lines)} rollouts, {len(different)} differences")
    return bool(different)


if __name__ == "__main__":
    sys.exit(main())
