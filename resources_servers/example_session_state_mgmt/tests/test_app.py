"""A counter belongs to its session; rows, tools and rewards are NeMo Gym's."""

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest

from rollout_kit import RolloutError, TaskError, ToolError, make_response
from rollout_kit.api.testing import OVERS, Over, making, mount
from rollout_kit.errors import SessionLost
from rollout_kit.serving.registry import load
from rollout_kit.session import Session, entered

Server = load("resources_servers", "example_session_state_mgmt")
ROWS = [
    orjson.loads(line)
    for line in (Path(__file__).parents[1] / "data" / "example.jsonl").read_bytes().splitlines()
]
ASKED = {"responses_create_params": {"input": "add 1 then add 2 then get the count"}}
TASK = {**ASKED, "initial_count": 3, "expected_count": 6}
Calls = list[tuple[str, Any]]


def attempts(over: Over, *many: Calls, task: Any = TASK) -> list[tuple[list[str], float]]:
    """What the tools said and the reward, of attempts side by side, each in its own session."""

    async def main() -> list[tuple[list[str], float]]:
        async with mount({"counter": making(Server)}, over) as peers:

            async def attempt(calls: Calls) -> tuple[list[str], float]:
                with entered(Session()):
                    await peers.call("counter", "/seed_session", task, dict)
                    said = []
                    for name, arguments in calls:
                        said.append(await peers.call("counter", f"/{name}", arguments, str))
                        await asyncio.sleep(0)
                    request = {**task, "response": make_response("m", [], None)}
                    verdict = await peers.call("counter", "/verify", request, dict)
                    await peers.call("counter", "/close_session", {}, dict)
                    return said, verdict["reward"]

            return await asyncio.gather(*map(attempt, many))

    return asyncio.run(main())


@pytest.mark.parametrize("over", OVERS)
@pytest.mark.parametrize("task", ROWS, ids=range(len(ROWS)))
def test_the_gold_calls_are_answered_as_the_example_says_and_score_full_reward(
    task: Any, over: Over
) -> None:
    calls = [each for each in task["gold_items"] if each["type"] == "function_call"]
    outputs = [each for each in task["gold_items"] if each["type"] == "function_call_output"]
    made = [(call["name"], orjson.loads(call["arguments"])) for call in calls]
    [found] = attempts(over, made, task=task)
    assert found == ([output["output"] for output in outputs], 1.0)


@pytest.mark.parametrize("over", OVERS)
def test_sessions_side_by_side_count_for_themselves(over: Over) -> None:
    many: list[Calls] = [
        [*[("increment_counter", {"count": 1})] * number, ("get_counter_value", {})]
        for number in range(6)
    ]
    found = attempts(over, *many)
    assert [said[-1] for said, _ in found] == [f'{{"count":{3 + number}}}' for number in range(6)]
    assert [reward for _, reward in found] == [0.0, 0.0, 0.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("calls", "reward"),
    [
        ([], 0.0),
        ([("increment_counter", {"count": 3})], 1.0),
        ([("increment_counter", {"count": "3"})], 1.0),
        ([("increment_counter", {"count": 3, "why": "asked"})], 1.0),
        ([("increment_counter", {"count": 5}), ("increment_counter", {"count": -2})], 1.0),
        ([("get_counter_value", {"of": "all"}), ("increment_counter", {"count": 3})], 1.0),
        ([("increment_counter", {"count": 4})], 0.0),
    ],
)
def test_the_reward_is_for_where_the_counter_ends(calls: Calls, reward: float) -> None:
    [(_, found)] = attempts("local", calls)
    assert found == reward


@pytest.mark.parametrize("arguments", [{}, {"count": "many"}, {"count": 1.5}])
def test_an_increment_by_no_number_is_told_to_the_policy(arguments: Any) -> None:
    with pytest.raises(ToolError, match="bad arguments: count"):
        attempts("local", [("increment_counter", arguments)])


@pytest.mark.parametrize("missing", ["initial_count", "expected_count"])
@pytest.mark.parametrize("over", OVERS)
def test_a_row_without_its_counts_is_refused_before_anything_else(missing: str, over: Over) -> None:
    task = {name: value for name, value in TASK.items() if name != missing}
    with pytest.raises(TaskError, match=f"{missing}: Field required"):
        attempts(over, [], task=task)


@pytest.mark.parametrize("over", OVERS)
@pytest.mark.parametrize("path", ["/increment_counter", "/get_counter_value", "/verify"])
def test_nothing_counts_outside_of_an_open_session(path: str, over: Over) -> None:
    async def main() -> None:
        body = {**TASK, "response": {}, "count": 3}
        async with mount({"counter": making(Server)}, over) as peers:
            with entered(Session()):
                await peers.call("counter", path, body, str)

    with pytest.raises(RolloutError) as caught:
        asyncio.run(main())
    assert isinstance(caught.value, SessionLost) and caught.value.status == 410
