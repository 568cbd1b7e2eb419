"""Files that an earlier version wrote, with its sidecars beside the main file, are read and gone on
with. They are as that version left them, but for names of folders."""

import shutil
from pathlib import Path

import pytest
from command import as_function
from exported import line
from support import read_jsonl, write_jsonl
from workplace import ROOT

import rollout_kit as rk
from rollout_kit.store.lines import turns_of

BEFORE = Path(__file__).with_name("before")
CONFIG = "+config_paths=[configs/quickstart.yaml]"


@pytest.fixture
def before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(ROOT)
    return Path(shutil.copytree(BEFORE, tmp_path / "before"))


def run(name: str, *words: object) -> None:
    with pytest.raises(SystemExit) as ended:
        as_function(f"ng_{name}")([str(word) for word in words])
    assert ended.value.code == 0


def test_rollouts_of_before_are_read(before: Path) -> None:
    rollouts = list(rk.load(before / "plain.jsonl"))
    assert len(rollouts) == 6 and all(each.reward is not None for each in rollouts)
    first = rollouts[0].info
    assert (first.model, first.finish_reason, first.num_turns) == ("tiny", "stop", 1)
    assert first.started_at.endswith("Z") and turns_of(rollouts[0].line) == []


def test_a_run_goes_on_behind_rollouts_of_before(before: Path) -> None:
    path, kept = before / "plain.jsonl", (before / "plain.jsonl").read_bytes()
    given = (
        CONFIG,
        f"+input_jsonl_fpath={before}/plain_tasks.jsonl",
        f"+output_jsonl_fpath={path}",
    )
    run("collect_rollouts", *given, "+num_repeats=3")
    assert path.read_bytes().startswith(kept) and len(read_jsonl(path)) == 9
    assert not (before / "plain.d").exists(), "its sidecars stay where they were"


def test_failures_of_before_are_tried_again(before: Path) -> None:
    output = before / "failed.jsonl"
    tasks = f"+input_jsonl_fpath={before}/failed_tasks.jsonl"
    run("collect_rollouts", CONFIG, tasks, f"+output_jsonl_fpath={output}")
    assert len(read_jsonl(output)) == 2 and len(read_jsonl(before / "failed_failures.jsonl")) == 2


def test_the_commands_that_read_rollouts_read_those_of_before(before: Path) -> None:
    path, new = before / "plain.jsonl", write_jsonl(before / "new.jsonl", [line(9, 0, "a", 1.0)])
    run("compare", path, shutil.copy(path, before / "copy.jsonl"))
    run("export", path, "+format=trl_sft", f"+output_fpath={before}/sft.jsonl")
    run("report", path, f"+output_fpath={before}/report.html")
    run("merge", path, new, f"+output_jsonl_fpath={before}/merged.jsonl")
    assert len(read_jsonl(before / "merged.jsonl")) == 7
    assert read_jsonl(before / "sft.jsonl")
