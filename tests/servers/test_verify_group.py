"""`verify_group` of a resources server over every transport: what it receives, what it may return,
and what is refused."""

import asyncio
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest
from pydantic import BaseModel
from support import Desk, row

from rollout_kit.api.testing import OVERS, Over, making, mount, text_response
from rollout_kit.errors import ConfigError, RolloutError, TaskError, VerifyError
from rollout_kit.responses import output_text
from rollout_kit.serving.group_verdicts import GroupScores, as_group_scores
from rollout_kit.serving.registry import load
from rollout_kit.serving.resources_server import ResourcesServer
from rollout_kit.serving.transport.peers import Peers
from rollout_kit.session import Session, entered
from rollout_kit.types import JsonObject, VerifyRequest, VerifyResponse

MEMBERS = [{"response": text_response(text)} for text in ("four", "2 + 2", "4")]


class Longest(ResourcesServer):
    """The longest answer earns 1."""

    async def verify(self, body: VerifyRequest) -> VerifyResponse:
        return body.scored(0.5)

    async def verify_group(self, task: JsonObject, members: Sequence[Any]) -> JsonObject:
        lengths = [len(output_text(each["response"])) if each else -1 for each in members]
        best = max(lengths)
        return {
            "members": [
                None if each is None else {"reward": length == best, "components": {"len": length}}
                for each, length in zip(members, lengths, strict=True)
            ],
            "group": {"longest": best, "arms": [each and each["arm"] for each in members]},
        }


def ask(
    server: type[ResourcesServer], body: JsonObject, over: Over = "local", **settings: Any
) -> JsonObject:
    async def asked() -> JsonObject:
        async with mount({"it": making(server, **settings)}, over) as peers:
            with entered(Session()):
                return await peers.call("it", "/verify_group", body, dict)

    return asyncio.run(asked())


@pytest.mark.parametrize("over", OVERS)
def test_members_are_scored_in_their_slots(over: Over) -> None:
    members = [MEMBERS[0], None, {**MEMBERS[1], "arm": "direct", "tags": {"probe": "A"}}]
    found = ask(Longest, {"task": {"expected": "4"}, "members": members}, over)
    assert found == {
        "members": [
            {"reward": 0.0, "components": {"len": 4.0}},
            None,
            {"reward": 1.0, "components": {"len": 5.0}},
        ],
        "group": {"longest": 5, "arms": ["", None, "direct"]},
    }


@pytest.mark.parametrize("over", OVERS)
@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"members": []}, "the body must be"),
        ({"task": {}, "members": {}}, "the body must be"),
        ({"task": {}, "members": [3]}, "members[0] must be null or an object with a 'response'"),
        ({"task": {}, "members": [None, {"arm": "x"}]}, "members[1] must be null or an object"),
    ],
)
def test_a_request_that_is_none_is_refused(body: JsonObject, why: str, over: Over) -> None:
    with pytest.raises(TaskError) as refused:
        ask(Longest, body, over)
    assert why in refused.value.message and refused.value.server == "it"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (None, "returned NoneType, not one score for each member"),
        ("abc", "returned str, not one score for each member"),
        ([1.0, 2.0], "returned 2 scores for 3 members"),
        ({"members": [1, 2, 3, 4]}, "returned 4 scores for 3 members"),
        ({"rewards": [1, 2, 3]}, "the unknown key 'rewards'"),
        ({"member": [1, 2, 3]}, "the unknown key 'member' (did you mean 'members'?)"),
        ({"members": [1, 2, 3], "agreement": 1}, "'agreement': figures belong into 'group'"),
        ([{"reward": 1, "component": {}}] * 3, "'component' in members[0] (did you mean 'comp"),
        ([1.0, math.nan, 1.0], "returned members[1].reward=nan, not a finite number"),
        ([1.0, "1", 1.0], "returned members[1].reward='1', not a finite number"),
        ([{"reward": 1, "components": {"a": math.inf}}] * 3, "members[0].components.a=inf"),
        ([{"reward": 1, "components": [1]}] * 3, "members[0].components=[1], not a mapping"),
        ([{"components": {}}] * 3, "members[0] without 'reward', which may be None"),
        ([{"rewrd": 1}] * 3, "the unknown key 'rewrd' in members[0] (did you mean 'reward'?)"),
        ([10**400] * 3, "not a finite number"),
        ([1e305] * 3, "returned members[0].reward=1e+305, not a finite number of at most 1e+300"),
        ({"members": [1, 1, 1], "group": [1]}, "returned list as figures of the group"),
        ({"members": [1, 1, 1], "group": {"a": math.nan}}, "group.a=nan, not a finite number"),
    ],
)
@pytest.mark.parametrize("over", OVERS)
def test_an_answer_that_does_not_fit_is_an_error_and_no_reward(
    answer: Any, why: str, over: Over
) -> None:
    class Odd(Longest):
        def verify_group(self, task: JsonObject, members: Sequence[Any]) -> Any:  # type: ignore[override]
            return answer

    with pytest.raises(VerifyError) as refused:
        ask(Odd, {"task": {}, "members": MEMBERS}, over)
    assert why in refused.value.message and not refused.value.retryable


def test_an_empty_slot_cannot_be_scored() -> None:
    with pytest.raises(VerifyError, match="scored slot 1, which is empty"):
        as_group_scores([1.0, 1.0], [MEMBERS[0], None])


class Score(BaseModel):
    reward: float | None = None


def test_a_list_of_rewards_will_do_and_a_member_may_be_unscorable() -> None:
    np = pytest.importorskip("numpy")
    found = as_group_scores([np.float32(0.5), None, True], MEMBERS)
    assert isinstance(found, GroupScores)
    assert [each and each.reward for each in found.members] == [0.5, None, 1.0]
    scored = as_group_scores([{"reward": None, "components": {"seen": 1}}], MEMBERS[:1])
    assert scored.members[0] is not None and scored.members[0].reward is None
    own = as_group_scores([Score.model_validate({})], MEMBERS[:1]).members[0]
    assert own is not None and own.reward is None, "a default that was not set"


@pytest.mark.parametrize("over", OVERS)
def test_a_server_without_the_method_has_no_such_route(over: Over) -> None:
    class Alone(ResourcesServer):
        async def verify(self, body: VerifyRequest) -> VerifyResponse:
            return body.scored(1.0)

    with pytest.raises(RolloutError) as refused:
        ask(Alone, {"task": {}, "members": []}, over)
    assert refused.value.status == 404


@pytest.mark.parametrize("over", OVERS)
def test_a_server_says_what_it_verifies(over: Over) -> None:
    class OnlyGroups(ResourcesServer):
        def verify_group(self, task: JsonObject, members: Sequence[Any]) -> list[float]:
            return [0.0 for _ in members]

    async def describe(server: type[ResourcesServer]) -> JsonObject:
        async with mount({"it": making(server)}, over) as peers:
            return await peers.describe("it")

    both, one = asyncio.run(describe(Longest)), asyncio.run(describe(OnlyGroups))
    assert (both["verifies"], both["verifies_groups"]) == (True, True)
    assert (one["verifies"], one["verifies_groups"]) == (False, True)
    assert "lack" not in one and not OnlyGroups.find_lack()


@pytest.mark.parametrize("over", OVERS)
def test_a_group_needs_no_session_where_rollouts_do(over: Over) -> None:
    class Stateful(Longest):
        async def seed_session(self, body: JsonObject) -> JsonObject:  # type: ignore[override]
            self.state = {}
            return {}

    found = ask(Stateful, {"task": {}, "members": MEMBERS}, over)
    assert [each["reward"] for each in found["members"]] == [0.0, 1.0, 0.0]


@pytest.mark.parametrize("over", OVERS)
def test_coherence_math_scores_groups_over_every_transport(over: Over) -> None:
    texts = [
        ("Two plus two is four. Answer: 4", ""),
        ("2 + 2 = 4. Answer: 4.0", ""),
        ("I get five. Answer: 5", "CF1"),
        ("Restating: add two and two. That is 4. Answer: 4", "A"),
    ]
    members: list[Mapping[str, Any]] = [
        {"response": text_response(text), "tags": {"probe": probe}} for text, probe in texts
    ]
    body = {"task": {"expected_answer": "... #### 4"}, "members": members}
    found = ask(load("resources_servers", "coherence_math"), body, over, profile="v3")
    rewards = [each["reward"] for each in found["members"]]
    expected = [1.402339427387, 1.368053713101, 0.222339427387, 1.402339427387]
    assert rewards == pytest.approx(expected, abs=1e-12)
    assert found["group"]["s_wm"] == pytest.approx(0.44467885477343894, abs=1e-12)
    parts = [sum(each["components"].values()) for each in found["members"]]
    assert parts == pytest.approx(rewards)


@pytest.mark.parametrize("over", OVERS)
def test_rollouts_of_a_server_that_scores_groups_only_have_no_reward(
    over: Over, tmp_path: Path
) -> None:
    class OnlyGroups(ResourcesServer):
        def verify_group(self, task: JsonObject, members: Sequence[Any]) -> list[float]:
            return [0.0 for _ in members]

    desk = Desk(tmp_path)
    desk.verifier, desk.collects_over, desk.over = making(OnlyGroups), over, over
    rows = [row("q0"), row("q1")]
    assert asyncio.run(desk.collect(rows, num_repeats=2)) == 0
    assert len(desk.lines()) == 4 and not any("reward" in line for line in desk.lines())
    assert "without verification" not in desk.out.getvalue()
    assert asyncio.run(desk.collect(num_repeats=2)) == 0 and "4 done" in desk.out.getvalue()
    assert asyncio.run(desk.reverify()) == 0
    assert len(desk.new()) == 4 and not any("reward" in line for line in desk.new())


def test_bytes_that_strict_json_refuses_are_mended() -> None:
    server = making(Longest)(Peers({}), "it")
    raw = b'{"task": {}, "members": [{"response": {"output": [], "x": NaN, "y": "\\ud800"}}]}'
    found = asyncio.run(server.answer("/verify_group", raw))
    assert orjson.loads(orjson.dumps(found))["members"][0]["reward"] == 1.0


def test_the_name_of_the_route_is_no_tool() -> None:
    with pytest.raises((ConfigError, TypeError, ValueError), match="verify_group"):

        class Taken(ResourcesServer):
            from rollout_kit.serving.tools import tool

            @tool
            async def verify_group(self) -> str:
                return ""
