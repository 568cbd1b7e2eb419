"""Which tasks an epoch has, by what is known of them."""

from collections import Counter
from typing import Any

import pytest
from support import Bench, asked, row
from used_groups import use_groups

from rollout_kit.api.testing import ScriptedModel
from rollout_kit.errors import ConfigError
from rollout_kit.rl import BufferPolicy
from rollout_kit.rl.task_policies import (
    Backoff,
    Band,
    Curriculum,
    KnownGroup,
    TaskPolicy,
    Thompson,
    Ucb,
    next_epoch,
    read_policy,
)
from rollout_kit.store.scope import parse_scope


@pytest.mark.parametrize(
    ("informative", "due"),
    [
        ([], 0),
        ([(0, True)], 1),
        ([(0, False)], 2),
        ([(0, False), (2, False)], 6),
        ([(0, False), (2, False), (6, False)], 14),
        ([(0, False), (2, True)], 3),
        ([(at, False) for at in (0, 2, 6, 14, 30, 62, 94)], 126),
    ],
)
def test_when_a_task_comes_back(informative: list[tuple[int, bool]], due: int) -> None:
    assert next_epoch(informative) == due


def collect(
    bench: Bench, steps: int, policy: Any = "later", rows: Any = None
) -> list[tuple[str, int]]:
    """Question and epoch of the groups that a trainer used."""
    rows = rows or [row("solved"), row("mixed"), row("failed", "x")]
    keys = {"num_repeats": 2, "epochs": None, "task_policy": policy}
    _, seen = use_groups(bench, BufferPolicy(batch=1, staleness=0), steps, rows, **keys)
    lines = [group.rollouts[0] for group in seen]
    return [
        (
            asked(line["responses_create_params"]),
            parse_scope(line["rollout"].get("scope", "")).epoch or 0,
        )
        for line in lines
    ]


def answer_by_turns(begun: Counter[str]) -> ScriptedModel:
    """One task is solved by every second rollout, one always and one never."""

    def answer(params: dict[str, Any]) -> str:
        said = asked(params)
        begun[said] += 1
        return said if said != "mixed" or begun[said] % 2 else "no"

    return ScriptedModel(answer)


def test_only_what_teaches_is_in_every_epoch(bench: Bench) -> None:
    bench.model = answer_by_turns(Counter())
    seen = collect(bench, steps=14)
    assert len(set(seen)) == 14
    of = {name: [epoch for said, epoch in seen if said == name] for name, _ in seen}
    assert of["mixed"] == list(range(len(of["mixed"])))
    assert of["solved"][:2] == of["failed"][:2] == [0, 2]
    assert "Task policy later: " in bench.out.getvalue()


def test_the_same_command_continues(bench: Bench) -> None:
    bench.model = answer_by_turns(Counter())
    seen = [*collect(bench, steps=5), *collect(bench, steps=6)]
    assert len(set(seen)) == 11
    assert max(Counter(name for name, _ in seen).items(), key=lambda item: item[1])[0] == "mixed"


def group(epoch: int, successes: float, number: int = 8) -> KnownGroup:
    return KnownGroup(epoch, number, successes, 0 < successes < number)


def test_a_band_leaves_out_what_is_outside_several_times() -> None:
    policy = Band(low=0.2, high=0.8, streak=2)
    assert policy.wants("a", 1, [group(0, 8)])
    assert not policy.wants("a", 2, [group(0, 8), group(1, 8)])
    assert policy.wants("a", 3, [group(0, 8), group(1, 8)])
    assert policy.wants("a", 3, [group(0, 8), group(1, 8), group(2, 4)])


@pytest.mark.parametrize("policy", [Backoff(), Band(), Thompson(), Ucb()])
def test_what_teaches_is_wanted_more_often(policy: TaskPolicy) -> None:
    def count(successes: float) -> int:
        """Epochs of 40 in which a task is wanted whose groups all come out so."""
        known: list[KnownGroup] = []
        for epoch in range(40):
            if policy.wants("task", epoch, known):
                known.append(group(epoch, successes))
        return len(known)

    assert count(4) == 40
    assert 2 <= count(0) < 20 and 2 <= count(8) < 20  # none is lost for ever


def test_draws_depend_on_the_seed_alone() -> None:
    known = [group(0, 1)]
    drawn = [
        [Thompson(seed=seed).wants(f"{task}", 1, known) for task in range(200)]
        for seed in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_curriculum_unlocks_what_is_harder(bench: Bench) -> None:
    """The easy tasks are always solved. The hard ones begin once 50 groups of those are known."""
    rows = [row(f"{level} {n}", level=level) for n in range(10) for level in (1, 2)]
    bench.model = ScriptedModel(asked)
    policy = {"name": "curriculum", "by": "level", "rate": 0.9}
    seen = collect(bench, 65, policy, rows)
    assert min(epoch for said, epoch in seen if said.startswith("2")) >= 5
    assert [said[0] for said, _ in seen[:50]] == ["1"] * 50


def test_a_curriculum_waits_while_too_little_is_solved(bench: Bench) -> None:
    rows = [row(f"{level} {n}", level=level) for n in range(10) for level in (1, 2)]
    bench.model = ScriptedModel(lambda params: "no")
    seen = collect(bench, 65, {"name": "curriculum"}, rows)
    assert {said[0] for said, _ in seen} == {"1"}


@pytest.mark.parametrize(
    "given", ["no", {"name": "band", "low": 3}, {"low": 0.1}, {"name": "ucb", "x": 1}]
)
def test_what_is_no_policy_is_refused(bench: Bench, given: Any) -> None:
    with pytest.raises(ConfigError, match="there are uniform, later, band"):
        collect(bench, 1, given)


def test_policies_are_values() -> None:
    assert read_policy("thompson") == Thompson()
    assert read_policy({"name": "curriculum", "by": "length"}) == Curriculum(by="length")
