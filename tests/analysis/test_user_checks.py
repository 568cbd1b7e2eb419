"""Checks of simulated users: planted faults are found, and honest users pass."""

import asyncio
from pathlib import Path
from typing import Any

import clerk
import pytest
from support import write_jsonl

import rollout_kit as rk
from rollout_kit.analysis.health.health import check_files
from rollout_kit.config.keys import CheckRolloutsConfig
from rollout_kit.responses import message_item
from rollout_kit.serving.gymnasium import observation_item
from rollout_kit.trajectory import ModelCall, pack_turns

LEFT, AWAY, EARLY = "user_left_role", "user_gave_away", "user_ended_early"

USER = {
    "goal": "Have order A17 cancelled.",
    "openings": ["Please cancel my order."],
    "knows": [
        {"about": "order", "says": "It is A17.", "asked": ["which order"]},
        {"about": "reason", "says": "I bought it twice.", "asked": ["why"]},
        {
            "about": "code",
            "says": "It is {output}.",
            "asked": ["code"],
            "does": {"tool": "read_code"},
        },
    ],
    "stops": ["is cancelled"],
}
CODE = [{"name": "read_code", "arguments": "{}", "output": "1234"}]


def said(text: str, calls: Any = None) -> dict[str, Any]:
    item = observation_item(text)
    return {**item, "user_calls": calls} if calls else item


def line(*texts: Any, ended: str = "user_stop", **changes: Any) -> dict[str, Any]:
    """A conversation: texts of the user and of the policy in turns, the user's first."""
    output = [
        message_item(text) if number % 2 else text if isinstance(text, dict) else said(text)
        for number, text in enumerate(texts)
    ]
    ends = [number for number, item in enumerate(output, 1) if item["role"] == "assistant"]
    calls = [ModelCall(to=end, input=1, output=1, finish="stop", chain=0) for end in ends]
    about = {"policy": "model", "ended": ended, "decisions": {"volunteered": []}}
    number = len(ends)
    usage = {"input_tokens": number, "output_tokens": number, "total_tokens": 2 * number}
    block = {"task_id": "t", "scope": "", "rollout_index": 0, "settings": "s"}
    return {
        "kind": "rollout",
        "schema": 1,
        "agent_ref": {"name": "agent"},
        "reward": 1.0,
        "user": USER,
        "response": {"output": output, "usage": usage, "status": "completed"},
        "rollout": {**block, "turns": pack_turns(calls), "user": about},
        **changes,
    }


def find(folder: Path, *rows: dict[str, Any]) -> set[str]:
    path = write_jsonl(folder / "rollouts.jsonl", list(rows))
    health = check_files(CheckRolloutsConfig(inputs=[str(path)]))
    return {finding.check for each in health.rollouts for finding in each.findings}


OPEN, ASK, WHY, DONE = "Please cancel my order.", "Which order?", "And why?", "It is cancelled."

HONEST = [
    (OPEN, ASK, "It is A17.", WHY, "I bought it twice.", DONE),
    (OPEN, "Which order, and the code?", said("A17, code 1234.", CODE), DONE),
    (OPEN, ASK, "It is A17.", DONE, "Thank you!"),
    ("Please cancel A17.", DONE),
]

FAULTY = [
    ((OPEN, "Hm?", "How can I help you today?", DONE), {LEFT}),
    ((OPEN, "Hm?", "As an AI, I have no order.", DONE), {LEFT}),
    ((OPEN, "Hm?", "Thanks ###STOP### bye", DONE), {LEFT}),
    ((OPEN, ASK + " I need it to go on.", ASK + " I need it to go on.", DONE), {LEFT}),
    ((OPEN, "Hello!", "My order is A17.", DONE), {AWAY}),
    ((OPEN, "Hello!", "I bought it twice!", DONE), {AWAY}),
    ((OPEN, "Hello!", said("Wait.", CODE), DONE), {AWAY}),
    ((OPEN, ASK), {EARLY}),
    ((OPEN, ASK, "It is A17.", "What is the code?"), {EARLY}),
    ((OPEN,), {EARLY, "rollout_missing_agent_turns"}),
]


@pytest.mark.parametrize("texts", HONEST)
def test_an_honest_user_passes(tmp_path: Path, texts: Any) -> None:
    user = {**USER, "openings": [OPEN, "Please cancel A17."]}
    assert find(tmp_path, line(*texts, user=user)) == set()


@pytest.mark.parametrize(("texts", "found"), FAULTY)
def test_a_faulty_user_is_found(tmp_path: Path, texts: Any, found: set[str]) -> None:
    assert find(tmp_path, line(*texts)) >= found
    assert found & {LEFT, AWAY, EARLY} == find(tmp_path, line(*texts)) & {LEFT, AWAY, EARLY}


def test_the_answer_of_the_row_is_no_user_s_to_say(tmp_path: Path) -> None:
    texts = (OPEN, "Hm?", "The answer is Paris.", DONE)
    assert find(tmp_path, line(*texts, expected_answer="Paris")) == {AWAY}
    echo = (OPEN, "Paris, I think.", "So Paris.", DONE)
    assert find(tmp_path, line(*echo, expected_answer="Paris")) == set()


def test_who_does_not_end_by_itself_does_not_end_too_early(tmp_path: Path) -> None:
    assert find(tmp_path, line(OPEN, ASK, ended="max_user_turns")) == set()


def test_what_was_volunteered_was_drawn_and_is_no_fault(tmp_path: Path) -> None:
    row = line(f"{OPEN} It is A17.", DONE)
    row["rollout"]["user"]["decisions"]["volunteered"] = ["order"]
    assert find(tmp_path, row) == set()
    row["rollout"]["user"]["decisions"]["volunteered"] = []
    assert find(tmp_path, row) == {AWAY}


def test_the_customers_of_the_order_desk_pass(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"

    async def main() -> Any:
        return await rk.collect(
            "resources_servers/order_desk/data/tasks.jsonl",
            model=clerk.serve,
            environment="order_desk",
            limit=24,
            num_repeats=2,
            output=path,
        )

    assert len(asyncio.run(main())) == 48
    health = check_files(CheckRolloutsConfig(inputs=[str(path)]))
    assert [each for each in health.rollouts if each.findings] == []
