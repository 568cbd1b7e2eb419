"""Tasks whose groups teach nothing are left out for some epochs, and come back."""

from collections import Counter
from typing import Any

import pytest
from support import Bench, asked, row
from used_groups import use_groups

from rollout_kit.api.testing import ScriptedModel
from rollout_kit.rl import BufferPolicy
from rollout_kit.rl.producing.revisits import next_epoch
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


def collect(bench: Bench, steps: int) -> list[tuple[str, int]]:
    """Question and epoch of the groups that a trainer used."""
    rows = [row("solved"), row("mixed"), row("failed", "x")]
    keys = {"num_repeats": 2, "epochs": None, "revisit": "later"}
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
    assert "left out, of tasks whose last rewards were all equal" in bench.out.getvalue()


def test_the_same_command_continues(bench: Bench) -> None:
    bench.model = answer_by_turns(Counter())
    seen = [*collect(bench, steps=5), *collect(bench, steps=6)]
    assert len(set(seen)) == 11
    assert max(Counter(name for name, _ in seen).items(), key=lambda item: item[1])[0] == "mixed"
