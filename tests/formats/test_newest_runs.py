"""Runs that the installed tools make with their own code, read here: `make test-formats`."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from made_rollouts import make_line, whole_prompts
from peer_pythons import folder_of
from support import write_jsonl

from rollout_kit.formats.importing import Import, import_runs

MAKERS = Path(__file__).with_name("makers")

PIXEL = "data:image/png;base64,iVBORw0KGgo="

pytestmark = pytest.mark.formats


def run(tool: str, *words: Any, cwd: Path) -> str:
    python = folder_of(tool) / "python"
    assert python.exists(), "make test-formats installs it"
    done = subprocess.run(
        [python, "-P", *words], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def make(tool: str, number: int, folder: Path, name: str = "theirs") -> tuple[Import, list[Any]]:
    """What is read of a number of runs of a tool."""
    maker = MAKERS / f"of_{tool.replace('-', '_')}.py"
    run(tool, maker, folder / name, str(number), cwd=folder)
    found = import_runs([folder / name], folder / "ours.jsonl")
    assert not [why for why in found.left_out if "malformed" in why]
    text = (folder / "ours.jsonl").read_text("utf-8")
    return found, [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize(("tool", "number"), [("inspect", 48), ("harbor", 24)])
def test_what_it_makes_is_read_with_rewards_and_calls(
    tool: str, number: int, tmp_path: Path
) -> None:
    found, lines = make(tool, 24, tmp_path)
    assert found.rollouts == number
    kinds = {item["type"] for line in lines for item in line["response"]["output"]}
    assert {"message", "function_call", "function_call_output"} <= kinds
    assert {line["reward"] for line in lines} >= {0.0, 1.0}


def texts(line: Any) -> list[str]:
    """What the model and users said, with the names of calls and the outputs of tools."""

    def of_item(item: Any) -> Iterator[str]:
        content = item.get("content") or item.get("summary") or []
        parts = [{"text": content}] if isinstance(content, str) else content
        yield from (part["text"] for part in parts)
        yield from (item[name] for name in ("name", "arguments", "output") if name in item)

    return [text for item in line["response"]["output"] for text in of_item(item)]


def list_expected(number: int) -> list[str]:
    """The same, as the makers of verifiers and NeMo Gym write it."""
    calls = ["add", '{"a":  1}'] * 2 + ["2"] * 2 if number % 6 == 1 else []
    turns = [text for each in range(99) for text in (f"turn {each}", "More.")]
    return [*calls, *(turns if number % 6 == 5 else []), str(number)]


def test_two_hundred_episodes_of_verifiers(tmp_path: Path) -> None:
    found, lines = make("verifiers", 200, tmp_path)
    assert found.rollouts == 200 and found.left_out.total() == 0
    for number, line in enumerate(lines):
        kind, output = number % 6, line["response"]["output"]
        wanted = list_expected(number)
        wanted = ["I add.", *wanted] if kind == 1 else wanted
        assert texts(line) == (["thinking", "42"] if kind == 2 else wanted)
        assert line["reward"] == (None if kind == 4 else 0.5 * (number % 2) + 0.5)
        assert (line["length"], line["expected_answer"]) == (number, str(number))
        [tool] = line["responses_create_params"]["tools"]
        assert (tool["name"], tool["parameters"]) == ("add", {"type": "object"})
        asked = line["responses_create_params"]["input"][1]["content"]
        assert (kind == 3) == (isinstance(asked, list) and asked[1]["image_url"] == PIXEL)
        error = line["response"].get("error")
        assert (error and error["message"]) == ("too slow" if kind == 4 else None)
        turns = line["rollout"]["turns"]
        num_turns = {1: 2, 5: 100}.get(kind, 1)
        assert turns["input"] == [9] * num_turns and turns["cached"] == [4] * num_turns
        assert turns["model_s"] == [0.5] * num_turns and turns["cost_usd"] == [0.5] * num_turns
        sampled = [each for each in output if "generation_token_ids" in each]
        assert len(sampled) == num_turns and sampled[0]["prompt_token_ids"] == [1, 2, 3]
        assert sampled[-1]["generation_log_probs"] == [-0.5, -0.25]
    assert found.kept["nodes"] == 200  # times of messages


def test_two_hundred_samples_of_lm_eval(tmp_path: Path) -> None:
    found, lines = make("lm-eval", 100, tmp_path)
    assert found.of_format == {"lm_eval": 200}
    written = [line for line in lines if "exact_match" in line]
    chosen = [line for line in lines if "acc" in line]
    assert len(written) == len(chosen) == 100
    for line in written:
        assert texts(line) == ["lol"] and line["reward"] == line["exact_match"]
        [asked] = line["responses_create_params"]["input"]
        assert asked["content"] == f"Q: {line['doc']['question']}\nA:"
        assert line["expected_answer"] == line["doc"]["answer"]
    assert {line["reward"] for line in written} == {0.0, 1.0}
    for line in chosen:
        assert line["response"]["output"] == [] and line["reward"] == line["acc"]
        assert len(line["lm_eval"]["resps"]) == len(line["lm_eval"]["arguments"]) == 2


def test_two_hundred_rollouts_of_nemo_gym(tmp_path: Path) -> None:
    found, lines = make("nemo-gym", 200, tmp_path, "theirs.jsonl")
    assert found.rollouts == 200 and found.left_out.total() == 0
    theirs = map(json.loads, (tmp_path / "theirs.jsonl").read_text("utf-8").splitlines())
    for number, (line, row) in enumerate(zip(lines, theirs, strict=True)):
        assert texts(line) == (["thinking"] if number % 6 == 2 else []) + list_expected(number)
        assert line["response"] == row["response"] and line["reward"] == row["reward"]
        given, asked = row["responses_create_params"], line["responses_create_params"]
        assert {name: asked.get(name) for name in given} == given
        assert (line["expected_answer"], line["length"]) == (str(number), number)
        assert line["agent_ref"]["name"] == "solver" and line["nemo_gym"]["ng_trajectory"]
        turns = line["rollout"]["turns"]
        assert (turns["model_s"], turns["input"], turns["cached"]) == ([1.5], [9], [4])


READ = """
import sys
from pathlib import Path
from nemo_gym.base_resources_server import BaseVerifyResponse
from nemo_gym.rollout_health import run_health_checks
lines = Path(sys.argv[1]).read_text("utf-8").splitlines()
print(sum(len(BaseVerifyResponse.model_validate_json(line).response.output) for line in lines))
run_health_checks(Path(sys.argv[1]), output_dir=Path(sys.argv[2]), workers=1)
"""


def test_nemo_gym_s_models_read_our_rollouts(tmp_path: Path) -> None:
    lines = [make_line(number) for number in range(200)]
    for line in lines:
        line["reward"] = line["reward"] or 0.0  # which its models need
        whole_prompts(line["response"]["output"])
    path = write_jsonl(tmp_path / "rollouts.jsonl", lines)
    said = run("nemo-gym", "-c", READ, path, tmp_path / "checks", cwd=tmp_path)
    assert int(said.splitlines()[0]) == sum(len(line["response"]["output"]) for line in lines)
    assert len((tmp_path / "checks/rollout_verdicts.jsonl").read_text().splitlines()) == 200
