"""examples/dpo: the commands of docs/from-rollouts-to-dpo.md, with few tasks.

Training and merging need the environment of `make trainers`. Without it their commands are left
out, and the tiny model itself is taken for what they make.
"""

import importlib.util
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import HANG_S, read_jsonl

ROOT = Path(__file__).resolve().parents[2]
BASE = "responses_api_models/local_model/checkpoint"
TRAINS = ("python examples/dpo/train.py", "ng_merge_lora")


@pytest.fixture(scope="module")
def demo() -> Any:
    spec = importlib.util.spec_from_file_location("dpo_demo", ROOT / "examples/dpo/demo.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.documents
def test_all_but_the_training_runs_on_the_tiny_model(demo: Any, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    said: dict[str, str] = {}
    for command in demo.read_commands(str(tmp_path), is_small=True):
        if not command.startswith(TRAINS):
            command = re.sub(r"policy_model_path=\S+", f"policy_model_path={BASE}", command)
            words = shlex.split(command)
            words[0] = str(Path(sys.executable).with_name(words[0]))
            done = subprocess.run(
                words, cwd=ROOT, capture_output=True, text=True, timeout=HANG_S, check=False
            )
            assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
            said[command] = done.stdout
    pairs = read_jsonl(tmp_path / "pairs.jsonl")
    assert pairs and all(pair["chosen_reward"] > 1 for pair in pairs)  # of the group, not of one
    assert all(pair["margin"] > 0.01 for pair in pairs)
    assert {pair["rule"] for pair in pairs} <= {"correctness", "coherence"}
    assert len(read_jsonl(tmp_path / "rollouts.d/groups.jsonl")) == 24
    greedy, _ = [each for command, each in said.items() if command.startswith("ng_compare")]
    assert "the second wins 0, loses 0, ties 16" in greedy  # the same model twice


@pytest.mark.trainers
def test_the_whole_loop_with_few_tasks(tmp_path: Path) -> None:
    words = [sys.executable, ROOT / "examples/dpo/demo.py", "--small", "--folder", tmp_path]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "sft: 24 rows, 8 steps" in done.stdout
    trained = re.search(r"dpo: (\d+) rows, (\d+) steps; the last: loss", done.stdout)
    assert trained and int(trained[1]) == len(read_jsonl(tmp_path / "pairs.jsonl"))
    assert done.stdout.count("ng_compare") == 2
    assert done.stdout.count("common tasks") == 4  # of rewards, and of the groups' rewards
    sft, dpo = (read_json(tmp_path / name / "merge_manifest.json") for name in ("sft", "dpo"))
    assert dpo["base"]["digest"] == sft["digest"]  # each step begins with what the one before made
    for side, made in (("before", sft), ("after", dpo)):
        assert len(read_jsonl(tmp_path / f"{side}_greedy.jsonl")) == 16
        settings = read_json(tmp_path / f"{side}_greedy.d/run.json")["settings"]
        assert made["digest"] in json.dumps(settings)


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())
