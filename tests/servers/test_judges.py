"""A judge that says nothing that can be read, or nothing at all: no verdict, and its name."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support import Desk, asked

from rollout_kit.api.testing import OVERS, Over, ScriptedModel, making, run_virtual
from rollout_kit.errors import ModelError
from rollout_kit.serving import registry
from rollout_kit.types import JsonObject

Equivalence = registry.load("resources_servers", "equivalence_llm_judge")
Genrm = registry.load("resources_servers", "genrm_compare")
ROWS = [
    {
        "responses_create_params": {"input": [{"role": "user", "content": f"q{number}"}]},
        "expected_answer": f"a{number}",
    }
    for number in range(4)
]


class Silent(ScriptedModel):
    """Never answers."""

    async def responses(self, params: JsonObject) -> JsonObject:
        await asyncio.sleep(10**6)
        return {}


def desk_with(folder: Path, judge: Any, server: Any = Equivalence, **settings: Any) -> Desk:
    desk = Desk(folder)
    ref = {"type": "responses_api_models", "name": "strict_judge"}
    desk.verifier = making(server, judge_model_server=ref, **settings)
    desk.others = desk.verifiers = {"strict_judge": lambda peers, name: judge}
    return desk


def down(params: JsonObject) -> str:
    raise ModelError("connection refused", status=503, retryable=False)


JUDGES = {
    "unreadable": lambda: ScriptedModel(lambda params: "I like both."),
    "empty": lambda: ScriptedModel(lambda params: ""),
    "down": lambda: ScriptedModel(down),
    "silent": lambda: Silent(asked),
}


@pytest.mark.parametrize("kind", JUDGES)
def test_without_a_judge_the_response_waits_and_the_report_names_it(
    tmp_path: Path, kind: str
) -> None:
    desk = desk_with(tmp_path, JUDGES[kind]())
    assert run_virtual(desk.collect(ROWS, stop_early=False, verify_timeout_s=60)) == 2
    assert desk.lines() == [] and len(desk.lines("unverified")) == 4
    said = desk.out.getvalue()
    assert "4 wait for their verdict" in said and "the judge 'strict_judge' gave no" in said
    assert "reward" not in desk.metrics()
    desk.verifiers = {"strict_judge": lambda peers, name: ScriptedModel(lambda params: "[[A=B]]")}
    source = str(tmp_path / "rollouts.d/unverified.jsonl")
    assert run_virtual(desk.reverify(input_jsonl_fpath=source)) == 0
    assert [line["reward"] for line in desk.new()] == [1.0] * 4


@pytest.mark.parametrize("over", OVERS[1:])
def test_a_silent_judge_is_named_in_time_over_every_transport(tmp_path: Path, over: Over) -> None:
    desk = desk_with(tmp_path, Silent(asked))
    desk.collects_over = over
    assert asyncio.run(desk.collect(ROWS[:1], stop_early=False, verify_timeout_s=1)) == 2
    [failure] = desk.lines("failures")
    assert "the judge 'strict_judge' gave no answer within" in failure["failure"]["message"]


def test_one_judge_of_three_that_is_down_is_named(tmp_path: Path) -> None:
    """Three verifiers with a judge each."""
    for name in ("one", "two", "three"):
        folder = tmp_path / name
        folder.mkdir()
        judge = Silent(asked) if name == "two" else ScriptedModel(lambda params: "[[A=B]]")
        desk = desk_with(folder, judge)
        status = run_virtual(desk.collect(ROWS, stop_early=False))
        assert status == (2 if name == "two" else 0)
        assert ("'strict_judge'" in desk.out.getvalue()) == (name == "two")


def test_a_group_whose_judge_cannot_be_read_has_no_score(tmp_path: Path) -> None:
    desk = desk_with(tmp_path, JUDGES["unreadable"](), Genrm)
    assert run_virtual(desk.collect(ROWS[:2], num_repeats=2)) == 2
    assert len(desk.lines()) == 4 and not desk.lines("groups")
    assert "the judge 'strict_judge' gave no scores" in desk.out.getvalue()
