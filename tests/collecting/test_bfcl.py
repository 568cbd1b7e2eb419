"""BFCL by name: its rows, its scores by section, right answers, and a run that is killed."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support import read_jsonl, write_jsonl

from benchmarks.agreement.ours import require, verify
from rollout_kit.collecting.data.benchmarks import bfcl_rows
from rollout_kit.collecting.data.benchmarks.origins import fetch_wheel
from rollout_kit.collecting.data.benchmarks.score import describe_score, score
from rollout_kit.config.benchmarks.definition import read_definition
from rollout_kit.errors import ConfigError

WHEEL = "bfcl_eval-2026.3.23-py3-none-any.whl"

FILES = "+config_paths=[model.yaml]"

NOT_RIGHT = {
    *("simple_java_36", "simple_java_64", "simple_java_65"),
    *("parallel_multiple_12", "parallel_multiple_26"),
    *("live_simple_106-63-0", "live_simple_112-68-0"),
    *("live_multiple_862-181-3", "live_multiple_964-207-0"),
}
"""Rows whose published answer does not fit their functions."""

FUNCTION = {
    "name": "math.area",
    "description": "The area.",
    "parameters": {
        "type": "dict",
        "properties": {"side": {"type": "float", "description": "Length."}},
        "required": ["side"],
    },
}
TEXT = {
    **FUNCTION,
    "parameters": {
        "type": "dict",
        "properties": {"side": {"type": "String", "description": "Length."}},
        "required": ["side"],
    },
}
DOC = {
    "name": "cd",
    "description": "Go to a folder.",
    "parameters": {
        "type": "dict",
        "properties": {"folder": {"type": "string", "description": "Its name."}},
        "required": ["folder"],
    },
    "response": {"type": "dict"},
}


def make_wheel(path: Path, num_conversations: int = 2) -> None:
    """A wheel in the published format, with two rows of each category."""
    path.parent.mkdir(parents=True, exist_ok=True)

    def lines(rows: list[Any]) -> str:
        return "".join(json.dumps(row) + "\n" for row in rows)

    with zipfile.ZipFile(path, "w") as archive:
        for name in bfcl_rows.DOCUMENTS.values():
            own = [DOC, {**DOC, "name": "ls"}] if name == "gorilla_file_system" else []
            archive.writestr(f"bfcl_eval/data/multi_turn_func_doc/{name}.json", lines(own))
        root = {"root": {"a": {"type": "directory", "contents": {}}}}
        root["root"]["a"]["contents"] = {"b": {"type": "directory", "contents": {}}}
        for category in (*bfcl_rows.SINGLE_TURN, *bfcl_rows.WITHOUT_ANSWERS):
            function = TEXT if "java" in category else FUNCTION
            truth: Any = {"math.area": {"side": ["3"] if "java" in category else [3.0]}}
            asked = [[{"role": "user", "content": f"{category}?"}]]
            rows = [
                {"id": f"{category}_{n}", "question": asked, "function": [function]}
                for n in range(2)
            ]
            archive.writestr(f"bfcl_eval/data/BFCL_v4_{category}.json", lines(rows))
            if category in bfcl_rows.SINGLE_TURN:
                truths = [{"id": row["id"], "ground_truth": [truth]} for row in rows]
                name = f"bfcl_eval/data/possible_answer/BFCL_v4_{category}.json"
                archive.writestr(name, lines(truths))
        for category in bfcl_rows.MULTI_TURN:
            number = num_conversations if category == "multi_turn_base" else 2
            rows = [
                {
                    "id": f"{category}_{n}",
                    "question": [[{"role": "user", "content": f"{n}?"}], []],
                    "initial_config": {"GorillaFileSystem": root},
                    "involved_classes": ["GorillaFileSystem"],
                    "missed_function": {"1": ["cd"]},
                }
                for n in range(number)
            ]
            truths = [{"id": row["id"], "ground_truth": [[], ["cd('b')"]]} for row in rows]
            archive.writestr(f"bfcl_eval/data/BFCL_v4_{category}.json", lines(rows))
            name = f"bfcl_eval/data/possible_answer/BFCL_v4_{category}.json"
            archive.writestr(name, lines(truths))


def command(folder: Path, *words: str) -> list[str]:
    (folder / "model.yaml").write_text(
        "policy_model: {responses_api_models: {simulated_model: {answer: text, text: Done.,"
        " num_tool_turns: 1, latency_s: 0.02}}}"
    )
    program = str(Path(sys.executable).with_name("ng_collect_rollouts"))
    files = () if any(word.startswith("+config_paths") for word in words) else (FILES,)
    return [program, *files, *words]


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}


def test_one_command_runs_all_categories(tmp_path: Path) -> None:
    make_wheel(tmp_path / "cache/rollout_kit/benchmarks/packages" / WHEEL)
    for name in ("bfcl", "bfcl@prompt"):
        done = subprocess.run(
            command(tmp_path, f"+benchmark={name}"),
            cwd=tmp_path,
            env=environment(tmp_path),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        lines = read_jsonl(tmp_path / f"results/simulated_model/{name}.jsonl")
        assert len({line["id"] for line in lines}) == len(lines) == 34
        path = tmp_path / f"results/simulated_model/{name}_aggregate_metrics.json"
        found = json.loads(path.read_text())["benchmark"]
        wrong = {"simple": 0.0, "non_live": 0.0, "live": 0.0, "multi_turn": 0.0}
        is_calling = name == "bfcl"
        assert found["sections"] == {
            **wrong,
            "irrelevance": float(not is_calling),
            "relevance": float(is_calling),
        }
        assert "no overall score" in done.stdout + done.stderr


def test_the_score_of_each_section() -> None:
    definition = read_definition("bfcl")
    own = {
        **{"simple_python": 0.9, "simple_java": 0.6, "simple_javascript": 0.3, "multiple": 0.8},
        **{"parallel": 1.0, "parallel_multiple": 0.0, "live": 0.5, "irrelevance": 1.0},
        "live_irrelevance": 0.5,
    }
    metrics = {
        "metrics": {f"accuracy/{name}": value for name, value in own.items()},
        "counts": {"tasks": 4441, "planned": 4441},
    }
    found = score(definition, metrics)
    sections = {name: value and round(value, 6) for name, value in found["sections"].items()}
    assert sections == {
        **{"simple": 0.6, "non_live": 0.6, "live": 0.5, "multi_turn": None},
        **{"irrelevance": 0.75, "relevance": None},
    }
    assert found["value"] is None
    assert "multi_turn –, irrelevance 0.750" in describe_score(found)


def test_rows_have_what_a_model_is_shown(tmp_path: Path) -> None:
    make_wheel(tmp_path / WHEEL)
    rows = {row["id"]: row for row in bfcl_rows.read_bfcl(tmp_path / WHEEL, "fc")}
    tool = rows["simple_python_0"]["responses_create_params"]["tools"][0]
    assert tool["name"] == "math_area"
    assert tool["description"] == "The area. Note that the provided function is in Python 3 syntax."
    assert tool["parameters"]["properties"]["side"] == {
        "type": "number",
        "format": "float",
        "description": "Length. This is a float type value.",
    }
    tool = rows["simple_java_0"]["responses_create_params"]["tools"][0]
    shown = tool["parameters"]["properties"]["side"]["description"]
    assert shown == "Length. This is Java String type parameter in string representation."
    talk = rows["multi_turn_base_0"]
    assert [each["name"] for each in talk["responses_create_params"]["tools"]] == ["ls"]
    assert [each["name"] for each in talk["more_tools"]["1"]] == ["ls", "cd"]
    assert talk["ground_truth"] == [[], [{"cd": {"folder": "b"}}]]
    with pytest.raises(ConfigError, match="neither fc nor prompt"):
        list(bfcl_rows.read_bfcl(tmp_path / WHEEL, "text"))


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    try:
        wheel = fetch_wheel("bfcl-eval", "2026.3.23", print)
    except ConfigError as error:
        pytest.skip(str(error))
    return list(bfcl_rows.read_bfcl(wheel, "fc"))


@pytest.mark.slow
def test_right_and_empty_answers(rows: list[dict[str, Any]]) -> None:
    assert len(rows) == 4441
    right = [row for row in rows if "gold_items" in row]
    assert len(right) == 3301
    found = asyncio.run(verify("bfcl", [(row, row["gold_items"]) for row in right]))
    wrong = {
        row["id"] for row, each in zip(right, found, strict=True) if require(each)["reward"] != 1
    }
    assert wrong == NOT_RIGHT
    found = asyncio.run(verify("bfcl", [(row, []) for row in rows]))
    for row, each in zip(rows, found, strict=True):
        assert require(each)["reward"] == float(row["kind"] == "irrelevance"), row["id"]


def run_through_a_kill(folder: Path, num_tasks: int, output: Path, words: list[str]) -> None:
    """A collection at 32 in flight that is killed in the middle: each task is there once."""
    words = command(folder, *words, "+num_samples_in_parallel=32")
    running = subprocess.Popen(
        words, cwd=folder, env=environment(folder), stdout=subprocess.DEVNULL
    )
    least = random.Random(1).randrange(num_tasks // 4, num_tasks // 2)
    while running.poll() is None:
        if output.exists() and output.read_bytes().count(b"\n") >= least:
            break
        time.sleep(0.01)
    running.send_signal(signal.SIGKILL)
    running.communicate()
    done = subprocess.run(
        words, cwd=folder, env=environment(folder), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    keys = Counter(line["id"] for line in read_jsonl(output))
    talks = [name for name in keys if name.startswith("multi_turn_base")]
    assert {*keys.values()} == {1}
    assert len(talks) == num_tasks


def test_conversations_survive_a_kill(tmp_path: Path) -> None:
    make_wheel(tmp_path / "cache/rollout_kit/benchmarks/packages" / WHEEL, 40)
    output = tmp_path / "results/simulated_model/bfcl.jsonl"
    run_through_a_kill(tmp_path, 40, output, ["+benchmark=bfcl"])


@pytest.mark.slow
def test_two_hundred_conversations_survive_a_kill(
    rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    own = [row for row in rows if row["category"] == "multi_turn_base"]
    write_jsonl(tmp_path / "tasks.jsonl", own)
    config = "resources_servers/bfcl/configs/bfcl.yaml"
    words = [f"+config_paths=[{config},model.yaml]", "+input_jsonl_fpath=tasks.jsonl"]
    words += ["+output_jsonl_fpath=out.jsonl", "+agent_name=bfcl_agent"]
    run_through_a_kill(tmp_path, 200, tmp_path / "out.jsonl", words)
