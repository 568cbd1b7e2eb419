"""Rollouts that are made again from one of their turns."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from command import as_function
from support import read_jsonl

import rollout_kit as rk
from rollout_kit.responses import function_call_item, message_item


class Counter(rk.ResourcesServer):
    reverify = "replay"

    async def seed_session(self, body: rk.JsonObject) -> rk.JsonObject:
        self.state = 0
        return {}

    @rk.tool
    async def add(self, number: int) -> int:
        """Add a number."""
        self.state += number
        return self.state

    async def verify(self, body: rk.VerifyRequest) -> rk.VerifyResponse:
        return body.scored(reward=float(self.state))


class Adding:
    """Adds `number` in each of three turns, and notes what it was asked."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.asked: list[list[rk.JsonObject]] = []

    def __call__(self, params: rk.JsonObject) -> rk.JsonObject:
        items = rk.input_items(params)
        self.asked.append(items)
        done = sum(item.get("type") == "function_call" for item in items)
        if done == 3:
            return {"output": [message_item(f"{done} times")]}
        call = function_call_item("add", json.dumps({"number": self.number}), f"call_{done}")
        return {"output": [{**call, "generation_token_ids": [1], "generation_log_probs": [-0.5]}]}


def collect(folder: Path, name: str, rows: Any, model: Adding, **more: Any) -> Any:
    run = rk.collect(
        rows, model=model, environment=Counter, output=folder / f"{name}.jsonl", **more
    )

    async def main() -> Any:
        return await run

    return asyncio.run(main())


ROWS = [{"responses_create_params": {"input": f"Add, {n}."}, "n": n} for n in range(2)]


def branch(folder: Path, turn: int, *words: str) -> list[dict[str, Any]]:
    target = folder / "branched.jsonl"
    with pytest.raises(SystemExit) as ended:
        as_function("ng_branch")(
            [str(folder / "first.jsonl"), f"+turn={turn}", f"+output_jsonl_fpath={target}", *words]
        )
    assert ended.value.code == 0
    return read_jsonl(target)


def test_a_rollout_is_made_again_from_a_turn(tmp_path: Path) -> None:
    collect(tmp_path, "first", ROWS, Adding(1))
    rows = branch(tmp_path, 3, "+where=n == 1")
    [row] = rows
    assert (
        row["agent_ref"] and row["n"] == 1 and [len(turn) for turn in row["first_turns"]] == [1, 1]
    )
    assert not any("token" in name for turn in row["first_turns"] for name in turn[0])

    model = Adding(10)
    table = collect(tmp_path, "again", rows, model, num_repeats=2)
    assert [rollout.reward for rollout in table] == [12.0, 12.0]  # 1 + 1 + 10
    assert len(model.asked) == 4, "two turns of each rollout"
    for rollout in table:
        outputs = [item["output"] for item in rollout.response["output"] if "output" in item]
        assert outputs == ["1", "2", "12"]
        assert rollout.line["rollout"]["given_turns"] == 2
        assert rollout.line["rollout"]["num_turns"] == 4

    second = collect(tmp_path, "other", branch(tmp_path, 1), Adding(5))
    assert [rollout.reward for rollout in second] == [15.0, 15.0]
    assert "given_turns" not in next(iter(second)).line["rollout"]


def test_turns_that_are_not_there_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    collect(tmp_path, "first", ROWS, Adding(1))
    with pytest.raises(SystemExit) as ended:
        as_function("ng_branch")(
            [str(tmp_path / "first.jsonl"), "+turn=9", f"+output_jsonl_fpath={tmp_path / 'x'}"]
        )
    assert ended.value.code == 1 and not (tmp_path / "x").exists()
    assert "2 rollouts: fewer than 9 turns" in capsys.readouterr().out


@pytest.mark.parametrize("given", ["text", [[]], [["text"]], [{}]])
def test_first_turns_that_are_none_fail(given: Any, tmp_path: Path) -> None:
    table = collect(tmp_path, "first", [{**ROWS[0], "first_turns": given}], Adding(1))
    [failure] = table.failures
    assert "expected a list of turns" in failure.error.message
