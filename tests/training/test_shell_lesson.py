"""examples/grpo --lesson shell: the commands of the harness do what its tasks verify."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support import NO_NAMESPACES, may_isolate

ROOT = Path(__file__).resolve().parents[2]

sys.path.append(str(ROOT / "examples/grpo"))

import harness  # noqa: E402
import shell_tasks  # noqa: E402


def test_each_task_is_done_by_one_of_the_eight_commands(tmp_path: Path) -> None:
    rows = list(shell_tasks.draw(16, "any", range(9)))
    for number, row in enumerate(rows):
        (tmp_path / "notes").write_text(row["files"]["/work/notes"])
        printed = [
            subprocess.run(
                ["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=True
            ).stdout
            for command in harness.COMMANDS.values()
        ]
        expected = row["verifier"]["expected"]["/work/answer"]
        assert [text == expected for text in printed].index(True) == number % 8
        assert printed.count(expected) == 1


def test_what_is_tested_was_never_learned(tmp_path: Path) -> None:
    words = [sys.executable, ROOT / "examples/grpo/shell_tasks.py", tmp_path, "--train", "400"]
    subprocess.run(words, check=True)
    asked = [
        {
            json.loads(line)["responses_create_params"]["input"][0]["content"]
            for line in (tmp_path / name).read_text().splitlines()
        }
        for name in ("train.jsonl", "test.jsonl")
    ]
    assert len(asked[1]) > 50 and not asked[0] & asked[1]


@pytest.mark.parametrize(
    ("said", "command"),
    [("3", "head -n 1 notes"), ("It is 8.", "nl notes"), ("9", None), ("", None), ("; rm", None)],
)
def test_a_reply_names_a_command_or_none(said: str, command: str | None) -> None:
    assert harness.choose(said) == command


@pytest.mark.trainers
@pytest.mark.skipif(not may_isolate(), reason=NO_NAMESPACES)
def test_the_lesson_runs_from_the_harness_to_the_weights(tmp_path: Path) -> None:
    words = [sys.executable, ROOT / "examples/grpo/demo.py", "--lesson", "shell", "--steps", "2"]
    done = subprocess.run(
        [*words, "--test", "8", "--folder", tmp_path], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in (tmp_path / "rollouts.jsonl").read_text().splitlines()]
    assert len(lines) >= 2 * 8 * 16
    assert all(line["rollout"]["harness"]["status"] == 0 for line in lines)
    assert (tmp_path / "curve.png").stat().st_size > 10_000
