"""A teacher's log-probs of the sampled tokens: a field of the line, and what a student learns."""

import asyncio
from typing import Any

import pytest
from support import Bench, asked, row
from table_policy import load_example, make_row
from token_model import TokenModel

from rollout_kit import load
from rollout_kit.errors import ModelError, PeerError
from rollout_kit.responses import message_item
from rollout_kit.rl import read_group
from rollout_kit.serving.model import ScoreRequest
from rollout_kit.trajectory import GENERATION, TEACHER, without_tokens


def score(token: int) -> float:
    return -token / 1000


class Teacher(TokenModel):
    """Finds a token the more likely the smaller it is."""

    async def score_tokens(self, asked: ScoreRequest) -> Any:
        assert asked.temperature == 1
        return {"log_probs": [score(token) for token in asked.token_ids[1:]]}


def speak(params: Any) -> list[Any]:
    return [message_item(asked(params))]


@pytest.fixture
def bench(bench: Bench) -> Bench:
    bench.model = TokenModel(speak)
    bench.others = {"teacher_model": lambda peers, name: Teacher(speak)}
    return bench


def test_the_teacher_scores_the_tokens_of_each_turn(bench: Bench) -> None:
    rows = [row("ab"), row("xyz")]
    assert asyncio.run(bench.collect(rows, teacher="teacher_model", num_repeats=2)) == 0
    rollouts = list(load(bench.folder / "rollouts.jsonl"))
    assert len(rollouts) == 4
    for rollout in rollouts:
        [item] = [each for each in rollout.response["output"] if GENERATION in each]
        assert item[TEACHER] == [score(token) for token in item[GENERATION]]
        [found] = read_group([rollout]).rows
        pairs = zip(found.token_ids, found.mask, strict=True)
        assert found.teacher_log_probs == [score(t) if m else 0.0 for t, m in pairs]
        assert TEACHER not in without_tokens(item)


def test_without_a_teacher_there_is_no_field(bench: Bench) -> None:
    assert asyncio.run(bench.collect([row("ab")])) == 0
    [rollout] = load(bench.folder / "rollouts.jsonl")
    assert [each.teacher_log_probs for each in read_group([rollout]).rows] == [[]]


def test_a_response_waits_for_a_teacher_that_is_away(bench: Bench) -> None:
    is_away, spoken = True, list[str]()

    class Away(Teacher):
        async def score_tokens(self, asked: ScoreRequest) -> Any:
            if is_away:
                raise ModelError("it is away", status=503, retryable=True)
            return await super().score_tokens(asked)

    def note(params: Any) -> list[Any]:
        spoken.append(asked(params))
        return speak(params)

    bench.model = TokenModel(note)
    bench.others = {"teacher_model": lambda peers, name: Away(speak)}
    assert asyncio.run(bench.collect([row("ab")], teacher="teacher_model")) == 2
    assert not (bench.folder / "rollouts.jsonl").exists()
    is_away = False
    assert asyncio.run(bench.collect([row("ab")], teacher="teacher_model")) == 0
    [rollout] = load(bench.folder / "rollouts.jsonl")
    assert [TEACHER in each for each in rollout.response["output"]] == [True]
    assert spoken == ["ab"]


def test_too_few_log_probs_are_an_error(bench: Bench) -> None:
    class Short(Teacher):
        async def score_tokens(self, asked: ScoreRequest) -> Any:
            return {"log_probs": [0.0]}

    bench.others = {"teacher_model": lambda peers, name: Short(speak)}
    assert asyncio.run(bench.collect([row("abcdef")], teacher="teacher_model")) == 2
    [failed] = (bench.folder / "rollouts.d/failures.jsonl").read_text().splitlines()
    assert "1 log-probs for" in failed


def test_a_teacher_that_is_not_there_is_named(bench: Bench) -> None:
    with pytest.raises(PeerError, match="no server is called 'teacher'"):
        asyncio.run(bench.collect([row("ab")], teacher="teacher"))


@pytest.mark.trainers
def test_the_advantage_is_what_the_teacher_has_over_the_student() -> None:
    pytest.importorskip("torch")
    example = load_example("distillation/train.py")
    table = [[0.0] * 7] * 7
    student = make_row([1, 2, 3], [0, 1, 1], table, teacher_log_probs=[0.0, -1.0, -3.0])
    sample = example.make_sample(student)
    own = student.log_probs
    assert sample.advantages == [0.0, -1.0 - own[1], -3.0 - own[2]]
    assert example.measure_divergence([sample])["teacher/kl"] == pytest.approx(2.0 + own[1])
    assert example.measure_divergence([]) == {}
    with pytest.raises(SystemExit, match=r"add \+teacher="):
        example.make_sample(make_row([1, 2], [0, 1], table))
