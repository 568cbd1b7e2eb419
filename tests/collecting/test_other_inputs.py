"""Rollouts of an earlier input in the same output: the figures of a run leave them out, and say
so."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command import as_function
from support import Bench, Desk, Echo, EchoRequest, asked, row, write_jsonl

from rollout_kit.api.testing import ScriptedModel, making, run_virtual
from rollout_kit.collecting import sources
from rollout_kit.errors import VerifyError
from rollout_kit.types import VerifyResponse

compare = as_function("ng_compare")
export = as_function("ng_export")
pairs = as_function("ng_pairs")
report = as_function("ng_report")

RIGHT = [row(f"a{number}") for number in range(10)]
WRONG = [row(f"b{number}", "no") for number in range(10)]


class Down(Echo):
    async def verify(self, body: EchoRequest) -> VerifyResponse:
        raise VerifyError("down", retryable=False)


def input_of(bench: Bench, name: str, rows: list[Any]) -> dict[str, Any]:
    return {"input_jsonl_fpath": str(write_jsonl(bench.folder / name, rows))}


@pytest.fixture
def mixed(tmp_path: Path) -> Bench:
    """Ten rows, all right, and then ten others, all wrong."""
    bench = Bench(tmp_path)
    for name, rows in (("a.jsonl", RIGHT), ("b.jsonl", WRONG)):
        assert run_virtual(bench.collect(**input_of(bench, name, rows))) == 0
    return bench


def check_mixed(bench: Bench, reward: float = 0.0) -> None:
    metrics = bench.metrics()
    assert metrics["reward"] == metrics["metrics"]["reward"] == reward
    counts = metrics["counts"]
    assert (counts["rollouts"], counts["tasks"], counts["planned"]) == (10, 10, 10)
    assert (counts["other_rollouts"], counts["other_tasks"]) == (10, 10)
    whole = metrics["whole_file"]
    assert (whole["rollouts"], whole["tasks"], whole["reward"]) == (20, 20, 0.5)
    said = bench.out.getvalue()
    assert f"Reward {reward:.3f} [" in said and "] over 10 rollouts of 10 tasks" in said
    assert "Whole file: reward 0.500 over 20 rollouts of 20 tasks, 10 of them" in said


def test_the_figures_are_those_of_this_input_and_one_line_is_of_the_whole_file(
    mixed: Bench,
) -> None:
    check_mixed(mixed)
    said = mixed.out.getvalue()
    assert "also holds 10 rollouts of 10 tasks that are not in" in said
    assert said.index("also holds") < said.index("Reward 0.000")
    assert run_virtual(mixed.collect(input_jsonl_fpath=str(mixed.folder / "a.jsonl"))) == 0
    check_mixed(mixed, 1.0)


@pytest.mark.parametrize("keys", [{"limit": 3}, {"num_repeats": 1}])
def test_a_limit_does_not_narrow_the_figures(mixed: Bench, keys: dict[str, Any]) -> None:
    given = {"input_jsonl_fpath": str(mixed.folder / "b.jsonl"), **keys}
    assert run_virtual(mixed.collect(**given)) == 0
    check_mixed(mixed)


def test_nothing_is_said_of_an_output_with_one_input(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for keys in ({"num_repeats": 2}, {"num_repeats": 1}, {"limit": 4}):
        run_virtual(bench.collect(RIGHT, **keys))
        assert "whole_file" not in bench.metrics() and "Whole file" not in bench.out.getvalue()
        assert bench.metrics()["counts"]["rollouts"] == 20


def test_a_row_that_was_edited_is_another_task(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    run_virtual(bench.collect([*RIGHT[:9], WRONG[0]]))
    assert bench.metrics()["reward"] == 0.9
    run_virtual(bench.collect(RIGHT))
    assert bench.metrics()["reward"] == 1.0
    assert bench.metrics()["whole_file"]["reward"] == pytest.approx(10 / 11)


def test_a_long_input_is_told_apart_beside_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "COUNT_FIRST", 3)
    bench = Bench(tmp_path)
    for name, rows in (("a.jsonl", RIGHT), ("b.jsonl", WRONG)):
        run_virtual(bench.collect(**input_of(bench, name, rows), num_samples_in_parallel=2))
    check_mixed(bench)
    assert "also holds 10 rollouts" in bench.out.getvalue()


def test_responses_of_an_earlier_input_that_waited_for_a_verdict_count_apart(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path)
    bench.verifier = making(Down)
    run_virtual(bench.collect(**input_of(bench, "a.jsonl", RIGHT), stop_early=False))
    assert len(bench.lines("unverified")) == 10
    bench.verifier = Bench(tmp_path).verifier
    assert run_virtual(bench.collect(**input_of(bench, "b.jsonl", WRONG))) == 0
    check_mixed(bench)


def test_stored_rollouts_of_another_file_count_apart(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    for name, rows in (("a", RIGHT), ("b", WRONG)):
        keys = {"output_jsonl_fpath": desk.folder / f"{name}.jsonl"}
        run_virtual(desk.collect(**input_of(desk, f"{name}_tasks.jsonl", rows), **keys))
        run_virtual(desk.reverify(input_jsonl_fpath=str(desk.folder / f"{name}.jsonl")))
    for keys in ({}, {"limit": 4}):
        run_virtual(desk.reverify(input_jsonl_fpath=str(desk.folder / "b.jsonl"), **keys))
        assert desk.new_metrics()["metrics"]["reward"] == 0.0
        assert desk.new_metrics()["whole_file"]["reward"] == 0.5


def test_the_tail_of_an_input_that_leaves_out_a_row_is_warned_of(tmp_path: Path) -> None:
    """As the rows in flight are lost by `tail -n +N`, N being the lines on disk."""
    bench = Bench(tmp_path)
    run_virtual(bench.collect(**input_of(bench, "all.jsonl", [*RIGHT[:3], *RIGHT[4:5]])))
    write_jsonl(bench.folder / "all.jsonl", RIGHT)  # as if the run had been killed
    run_virtual(bench.collect(**input_of(bench, "rest.jsonl", RIGHT[5:])))
    said = bench.out.getvalue()
    assert "warning:" in said and "is a part of" in said
    assert f"1 task of the earlier input {bench.folder}/all.jsonl" in said
    assert "Whole file: reward 1.000 over 9 rollouts of 9 tasks" in said


def test_a_killed_run_leaves_its_input_in_the_manifest(tmp_path: Path) -> None:
    bench = Bench(tmp_path)

    def look(params: dict[str, Any]) -> str:
        found.extend(json.loads((tmp_path / "rollouts.d/run.json").read_text())["inputs"])
        return asked(params)

    found = list[dict[str, Any]]()
    bench.model = ScriptedModel(look)
    run_virtual(bench.collect(RIGHT[:1]))
    assert found[0]["path"] == str(tmp_path / "tasks.jsonl") and found[0]["tasks"] == 1


COMMANDS: dict[str, tuple[Callable[..., Any], list[str]]] = {
    "compare": (compare, ["{out}", "{other}"]),
    "export": (export, ["{out}", "+format=trl_sft", "+output_fpath={folder}/e.jsonl"]),
    "pairs": (pairs, ["{out}", "+allow_empty=true", "+output_fpath={folder}/p.jsonl"]),
    "report": (report, ["{out}", "+output_fpath={folder}/r.html"]),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_without_an_input_take_all_and_say_so_or_are_restricted(
    mixed: Bench, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main, words = COMMANDS[name]
    out = mixed.folder / "rollouts.jsonl"
    other = write_jsonl(mixed.folder / "other.jsonl", mixed.lines())
    argv = [word.format(out=out, other=other, folder=mixed.folder) for word in words]

    def run(*more: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main([*argv, *more])
        captured = capsys.readouterr()
        assert not ended.value.code, captured.err
        return captured.out

    said = run()
    assert f"10 tasks of an earlier input, not of {mixed.folder}/b.jsonl" in said
    assert "20 rollouts" in said or "20 tasks" in said or "20 read" in said
    said = run(f"+input_jsonl_fpath={mixed.folder}/b.jsonl")
    assert "earlier input" not in said and "10" in said


def test_the_tail_of_an_earlier_input_names_what_lay_before_the_cut(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    whole = [*RIGHT, *WRONG]
    limits = {"num_samples_in_parallel": 1, "max_total_tokens": 1}
    run_virtual(bench.collect(**input_of(bench, "all.jsonl", whole), **limits))
    done = len(bench.lines())
    assert 0 < done < 4
    run_virtual(bench.collect(**input_of(bench, "tail.jsonl", whole[5:])))
    said = bench.out.getvalue()
    assert f"warning: {5 - done} tasks of {tmp_path / 'all.jsonl'} are not done, and not in" in said
    run_virtual(bench.collect(input_jsonl_fpath=str(tmp_path / "all.jsonl")))
    assert len(bench.lines()) == len(whole)
