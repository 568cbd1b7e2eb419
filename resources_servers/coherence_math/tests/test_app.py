"""The verifier alone and of a group, over the server's own methods."""

import asyncio
from typing import Any

import orjson
import pytest

from rollout_kit import make_response, message_item
from rollout_kit.api.testing import making
from rollout_kit.serving.registry import load
from rollout_kit.serving.transport.peers import Peers

CoherenceMath = load("resources_servers", "coherence_math")


def response(text: str, tokens: int | None = None) -> dict[str, Any]:
    usage = None if tokens is None else {"output_tokens": tokens}
    return {**make_response("m", [message_item(text)], None), "usage": usage}


def server(**settings: Any) -> Any:
    return making(CoherenceMath, **settings)(Peers({}), "coherence_math")


@pytest.mark.parametrize(
    ("text", "expected", "reward", "answer"),
    [
        ("Answer: 27", "36 - 9 = 27\n#### 27", 1.0, "27"),
        ("It is \\boxed{1/2}.", "0.5", 1.0, "1/2"),
        ("Answer: 28 dollars", "27", 0.0, "28"),
        ("I do not know", "27", 0.0, None),
        ("", "27", 0.0, None),
    ],
)
def test_a_response_alone(text: str, expected: str, reward: float, answer: str | None) -> None:
    row = {"responses_create_params": {"input": "q"}, "expected_answer": expected}
    raw = orjson.dumps({**row, "response": response(text)})
    found = asyncio.run(server().answer("/verify", raw)).model_dump()
    assert (found["reward"], found["extracted_answer"]) == (reward, answer)


def test_a_group_keeps_its_slots_and_its_empty_ones() -> None:
    task = {"expected_answer": "#### 4"}
    members = [
        {"response": response("Answer: 4"), "tags": {"probe": "A"}},
        None,
        {"response": response("Answer: 5"), "tags": {}},
        {"response": response("Answer: 4", tokens=612)},
    ]
    found = server().verify_group(task, members)
    rewards = [each and each["reward"] for each in found["members"]]
    assert rewards[1] is None and rewards[0] > rewards[3] > rewards[2]
    assert found["members"][3]["components"]["length_penalty"] == pytest.approx(-0.1)
    assert found["group"]["s_end"] == pytest.approx(1 / 3)
    assert server().verify_group(task, [None, None]) == {"members": [None, None], "group": {}}


def test_the_profile_is_part_of_what_a_verdict_depends_on() -> None:
    strict, published = (server(profile=name).describe()["verifier"] for name in ("strict", "v3"))
    assert strict != published
