"""ng_reweight: rewards computed again from stored components, without model and verifier."""

import json
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from command import as_function
from support import read_jsonl

import rollout_kit as rk

ROWS = [
    {"responses_create_params": {"input": f"What is {n} + 2?"}, "expected_answer": str(n + 2)}
    for n in range(3)
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def reweight(*words: str) -> int:
    with pytest.raises(SystemExit) as end:
        as_function("ng_reweight")(list(words))
    return int(end.value.code or 0)


def collect_groups() -> None:
    numbers = count()

    def answer(params: dict[str, Any]) -> str:
        return f"{'word ' * 700}Answer: {next(numbers) % 3 + 2}"

    run = rk.collect_sync(
        ROWS, model=answer, environment="coherence_math", num_repeats=4, output="given.jsonl"
    )
    assert len(run.table()) == 12


def group_rewards(path: str) -> dict[Any, Any]:
    return {each.key: each.group for each in rk.load(path)}


def test_components_of_groups_get_their_factors(capsys: pytest.CaptureFixture[str]) -> None:
    collect_groups()
    before = Path("given.jsonl").read_bytes()
    words = ("+factors.coherence=3", "+factors.length_penalty=0")
    assert reweight("given.jsonl", *words, "+output_jsonl_fpath=new.jsonl") == 0
    assert "new.jsonl: new rewards of 3 groups" in capsys.readouterr().out
    assert Path("given.jsonl").read_bytes() == before
    old, new = group_rewards("given.jsonl"), group_rewards("new.jsonl")
    assert old.keys() == new.keys() and len(new) == 12
    for key, group in new.items():
        parts = old[key].components
        assert parts["length_penalty"] < 0
        expected = sum(value for name, value in parts.items() if name != "length_penalty")
        assert group.reward == pytest.approx(expected + 2 * parts["coherence"])
    assert [each["reward"] for each in read_jsonl(Path("new.jsonl"))] == [
        each["reward"] for each in read_jsonl(Path("given.jsonl"))
    ]
    metrics = json.loads(Path("new_aggregate_metrics.json").read_text())
    assert metrics["metrics"]["group_reward"] == pytest.approx(
        sum(each.reward for each in new.values()) / 12, abs=1e-3
    )


def test_a_rollout_s_own_reward_is_the_sum_of_the_scores_that_are_named() -> None:
    def verify(task: Any, response: Any) -> Any:
        return {"reward": 1.0, "right": 1, "style": 0.5}

    rows = [{"responses_create_params": {"input": "x"}}]
    rk.collect_sync(rows, model=lambda p: "y", verify=verify, output="given.jsonl").table()
    words = ("+factors.right=2", "+factors.style=-1")
    assert reweight("given.jsonl", *words, "+output_jsonl_fpath=new.jsonl") == 0
    assert [each.reward for each in rk.load("new.jsonl")] == [1.5]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("given.jsonl",), "factors are missing"),
        (("given.jsonl", "+factors.stile=2"), "factors.stile: no rollout has it; there are:"),
        (("+factors.style=2",), "name one file"),
        (("given.jsonl", "+factors.x=1", "+output_jsonl_fpath=given.jsonl"), "both input and out"),
    ],
)
def test_what_cannot_be_computed_writes_nothing(
    words: tuple[str, ...], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"responses_create_params": {"input": "x"}}]
    verify = lambda task, response: {"reward": 1.0, "style": 0.5}  # noqa: E731
    rk.collect_sync(rows, model=lambda p: "y", verify=verify, output="given.jsonl").table()
    capsys.readouterr()
    own = [] if any("output" in word for word in words) else ["+output_jsonl_fpath=new.jsonl"]
    assert reweight(*words, *own) == 1
    assert error in capsys.readouterr().err
    assert not Path("new.jsonl").exists() and len(list(rk.load("given.jsonl"))) == 1
