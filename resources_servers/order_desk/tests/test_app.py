"""The desk's rules, its customers, and what a trainer may learn from."""

import asyncio
import json
import math
import subprocess
import sys
from pathlib import Path
from statistics import mean
from typing import Any

import clerk
import pytest
from spelled import SpelledModel, decode, words_of

import rollout_kit as rk
from rollout_kit.serving import registry
from rollout_kit.trajectory import TOKEN_FIELDS, sequences

OrderDesk = registry.load("resources_servers", "order_desk")
FOLDER = Path(sys.modules[OrderDesk.__module__].__file__ or "").parent
TASKS = FOLDER / "data/tasks.jsonl"
desk = sys.modules[f"{OrderDesk.__module__.rpartition('.')[0]}.desk"]


def orders() -> Any:
    common = {"email": "ada@example.com", "code": "0042"}
    return desk.Desk(
        [
            desk.Order(id="A1", items=["red lamp"], status="placed", **common),
            desk.Order(id="B1", items=["tent", "radio"], status="delivered", **common),
            desk.Order(id="C1", items=["scarf"], status="shipped", **common),
        ]
    )


def test_an_order_is_cancelled_with_the_code_that_was_sent() -> None:
    found = orders()
    with pytest.raises(ValueError, match="the code is wrong"):
        found.cancel("A1", "0042")  # a guess, which was not sent
    with pytest.raises(ValueError, match="there is no message with a code"):
        found.read_code()
    found.send_code("A1")
    found.cancel("A1", found.read_code())
    assert found.orders["A1"].status == "cancelled"


def test_a_return_needs_the_customer() -> None:
    found = orders()
    with pytest.raises(ValueError, match="there is nothing to approve"):
        found.approve()
    found.ask_return("B1", "tent", "card")
    assert found.orders["B1"].returned == {}
    found.approve()
    assert found.orders["B1"].returned == {"tent": "card"}


@pytest.mark.parametrize(
    ("act", "why"),
    [
        (lambda found: found.send_code("X"), "there is no order 'X'"),
        (lambda found: found.cancel("C1", "0042"), "order C1 is shipped: it cannot be cancelled"),
        (lambda found: found.ask_return("C1", "scarf", "card"), "order C1 is shipped: nothing"),
        (lambda found: found.ask_return("B1", "lamp", "card"), "has no 'lamp'; it has: tent, rad"),
    ],
)
def test_what_is_not_allowed_changes_nothing(act: Any, why: str) -> None:
    found, before = orders(), orders().orders
    with pytest.raises(ValueError, match=why):
        act(found)
    assert found.orders == before


def collect(folder: Path, model: Any, limit: int = 20, repeats: int = 8, **keys: Any) -> Any:
    async def main() -> Any:
        return await rk.collect(
            TASKS,
            model=model,
            environment="order_desk",
            limit=limit,
            num_repeats=repeats,
            num_repeats_add_seed=True,
            output=folder / "rollouts.jsonl",
            **keys,
        )

    asyncio.run(main())
    lines = [json.loads(line) for line in (folder / "rollouts.jsonl").read_text().splitlines()]
    return {(each["rollout"]["task_id"], each["rollout"]["rollout_index"]): each for each in lines}


def said(line: rk.JsonObject) -> list[Any]:
    """A conversation without its ids."""
    names = ("type", "role", "content", "name", "arguments", "output", "user_calls")
    return [{name: item.get(name) for name in names} for item in line["response"]["output"]]


def check_runs(tmp_path: Path, limit: int) -> None:
    for name in ("one", "two", "other"):
        (tmp_path / name).mkdir()
    one = collect(tmp_path / "one", clerk.serve, limit)
    two = collect(tmp_path / "two", clerk.serve, limit)
    other = collect(tmp_path / "other", clerk.serve_at_once, limit)
    assert len(one) == limit * 8 and one.keys() == two.keys() == other.keys()
    for key, line in one.items():
        assert (said(line), line["reward"]) == (said(two[key]), two[key]["reward"])
        user, met = line["rollout"]["user"], other[key]["rollout"]["user"]
        assert (user["seed"], user["decisions"]) == (met["seed"], met["decisions"])
        assert said(line)[0] == said(other[key])[0]  # the first message
    assert len({line["rollout"]["user"]["seed"] for line in one.values()}) > limit * 7
    metrics = json.loads((tmp_path / "one/rollouts_aggregate_metrics.json").read_text())
    passed: dict[str, int] = {}
    for (task, _), line in one.items():
        passed[task] = passed.get(task, 0) + (line["reward"] == 1.0)
    for k in range(1, 9):
        by_hand = mean(math.comb(number, k) / math.comb(8, k) for number in passed.values())
        assert metrics["pass_hat_k"][str(k)] == pytest.approx(by_hand)
        low, high = metrics["pass_hat_k_intervals"][str(k)]
        assert low < by_hand < high
    assert 0 < metrics["pass_hat_k"]["8"] < metrics["pass_hat_k"]["1"] < 1


def test_a_seed_repeats_a_run_and_another_policy_meets_the_same_customers(tmp_path: Path) -> None:
    check_runs(tmp_path, 16)


@pytest.mark.slow
def test_all_tasks_eight_times(tmp_path: Path) -> None:
    check_runs(tmp_path, 200)


def test_a_trainer_learns_from_the_clerk_s_words_alone(tmp_path: Path) -> None:
    lines = collect(tmp_path, SpelledModel(clerk.serve), limit=20, repeats=1)
    assert len(lines) == 20
    for line in lines.values():
        output = line["response"]["output"]
        expected = []
        for item in [*line["responses_create_params"]["input"], *output]:
            is_clerk = item.get("role") == "assistant" or item.get("type") == "function_call"
            expected += [(word, is_clerk) for word in words_of(item)]
        [sequence] = sequences(output)
        found = [*zip(decode(sequence.token_ids), sequence.is_generated, strict=True)]
        assert found == expected[: len(found)]
        assert not any(is_clerk for _, is_clerk in expected[len(found) :])
        customer = [item for item in output if item.get("role") == "user"]
        assert customer and not any(TOKEN_FIELDS & item.keys() for item in customer)


def test_stored_rollouts_are_verified_again_with_the_calls_of_both_sides(tmp_path: Path) -> None:
    before = collect(tmp_path, clerk.serve, limit=8, repeats=1)
    assert {line["reward"] for line in before.values()} == {1.0}

    async def main() -> Any:
        return await rk.reverify(
            tmp_path / "rollouts.jsonl", environment="order_desk", output=tmp_path / "again.jsonl"
        )

    table = asyncio.run(main())
    assert [rollout.reward for rollout in table] == [1.0] * 8
    calls = [call for line in before.values() for call in line["response"]["output"]]
    assert any("user_calls" in item for item in calls)
    for line in map(json.loads, (tmp_path / "again.jsonl").read_text().splitlines()):
        assert "replay_differences" not in line["rollout"]


def test_the_clerk_cannot_use_the_customer_s_tools(tmp_path: Path) -> None:
    def greedy(params: rk.JsonObject) -> Any:
        outputs = [each for each in params["input"] if each.get("type") == "function_call_output"]
        if not outputs:
            return rk.make_response("m", [rk.function_call_item("approve_return", "{}")], None)
        assert outputs[0]["output"].startswith("error: no tool 'approve_return'")
        return "Is there anything else?"

    [line] = collect(tmp_path, greedy, limit=1, repeats=1).values()
    offered = {tool["name"] for tool in line["response"].get("tools") or []}
    assert "approve_return" not in offered and line["reward"] == 0.0


def test_the_shipped_tasks_are_those_that_are_generated(tmp_path: Path) -> None:
    command = [sys.executable, FOLDER / "generate.py", tmp_path]
    subprocess.run(command, check=True)
    for name in ("tasks.jsonl", "example.jsonl"):
        assert (tmp_path / name).read_bytes() == (FOLDER / "data" / name).read_bytes()
    assert len(TASKS.read_text().splitlines()) == 200
