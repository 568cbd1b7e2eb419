"""Long conversations: what the policy reads is shortened, the line keeps all of it, and a trainer
gets a sequence for each chain. Limits of a rollout, and agents that ask several models."""

import json
import random
from typing import Any

import pytest
from spelled import SpelledModel, decode, words_of

from rollout_kit.analysis.export.conversation import Unfit, read_conversation
from rollout_kit.api.testing import ScriptedModel, call_response, making, mount, run_virtual
from rollout_kit.errors import ModelError
from rollout_kit.responses import input_items, make_response, message_item
from rollout_kit.serving import registry
from rollout_kit.serving.agent import Agent
from rollout_kit.serving.agents.compaction import SUMMARY_PROMPT
from rollout_kit.serving.resources_server import ResourcesServer, tool
from rollout_kit.session import RETURNED, Session, TurnLog, entered
from rollout_kit.store.lines import rollout_of
from rollout_kit.trajectory import read_turns, sequences
from rollout_kit.types import JsonObject, VerifyRequest, VerifyResponse

SimpleAgent = registry.load("responses_api_agents", "simple_agent")
WIRING = {"resources_server": {"name": "tools"}, "model_server": {"name": "policy_model"}}
QUESTION = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "go on"}]}


class Reader(ResourcesServer):
    @tool
    async def read(self, page: int) -> str:
        """Read a page."""
        return " ".join(f"p{page}w{number}" for number in range(10 + page))

    async def verify(self, body: VerifyRequest) -> VerifyResponse:
        return body.scored(1.0)


def respond(
    model: Any, session: Session, agent: Any = None, others: Any = None, **settings: Any
) -> JsonObject:
    async def main() -> JsonObject:
        servers = {
            "policy_model": lambda peers, name: model,
            "tools": making(Reader),
            "agent": making(agent or SimpleAgent, **WIRING, **settings),
            **(others or {}),
        }
        async with mount(servers) as peers:
            with entered(session):
                await peers.call("tools", "/seed_session", {"responses_create_params": {}}, dict)
                return await peers.call("agent", "/v1/responses", {"input": [QUESTION]}, dict)

    return run_virtual(main())


def reads(pages: int) -> Any:
    """A policy that reads so many pages, one a turn, and then answers."""
    state = {"page": 0}

    def answer(params: JsonObject) -> Any:
        last = params["input"][-1]
        if last.get("role") == "user" and "getting too long" in last["content"][0]["text"]:
            return f"up to page {state['page']}"
        if state["page"] == pages:
            return "done reading"
        state["page"] += 1
        return call_response(("read", json.dumps({"page": state["page"]})))

    return answer


def chains_by_hand(
    output: list[JsonObject], compactions: list[JsonObject]
) -> list[list[tuple[str, bool]]]:
    """The words of each chain, and whether the policy said them, from the line alone."""
    asked = [(word, False) for word in words_of(QUESTION)]

    def spell(items: list[JsonObject], *, learns: bool = True) -> list[tuple[str, bool]]:
        return [
            (word, learns and item["type"] in ("function_call", "message", "reasoning"))
            for item in items
            for word in words_of(item)
        ]

    chains, shown, begin = [], list[tuple[str, bool]](asked), 0
    for each in compactions:
        at = each["at"]
        shown += spell(output[begin:at])
        if each["how"] == "summary":
            summary = output[at - 1]
            assert summary["type"] == "reasoning"
            shown = shown[: len(shown) - len(words_of(summary))]
            shown += [("<user>", False), *((word, False) for word in SUMMARY_PROMPT.split())]
            shown += spell([summary])
            chains.append(shown)
            text = summary["summary"][0]["text"]
            told = f"Summary of the conversation so far:\n{text}".split()
            kept = [item for item in output[each["until"] : at - 1] if item["type"] != "reasoning"]
            shown = [*asked, ("<user>", False), *((word, False) for word in told)]
            shown += spell(kept, learns=False)
        begin = at
    shown += spell(output[begin:])
    return [*chains, shown]


@pytest.mark.parametrize("seed", range(20))
def test_each_chain_has_the_tokens_that_the_policy_read_and_said(seed: int) -> None:
    chance = random.Random(seed)
    pages, keep = chance.randint(3, 12), chance.randint(1, 3)
    compaction = {"above_tokens": chance.randint(40, 120), "keep_turns": keep}
    session = Session()
    response = respond(SpelledModel(reads(pages)), session, compaction=compaction)
    output, compactions = response["output"], session.stats.get("compactions", [])
    expected = chains_by_hand(output, compactions)
    found = [
        [*zip(decode(one.token_ids), one.is_generated, strict=True)] for one in sequences(output)
    ]
    assert found == expected
    turns = read_turns(session.stats["turns"])
    assert {each.chain for each in turns} == set(range(len(expected)))
    assert [each["chain"] for each in compactions] == list(range(1, len(expected)))
    assert len([item for item in output if item["type"] == "function_call_output"]) == pages


def test_some_of_the_twenty_have_several_chains() -> None:
    session = Session()
    respond(SpelledModel(reads(12)), session, compaction={"above_tokens": 60})
    assert len(session.stats["compactions"]) > 2


def test_a_summary_is_no_part_of_the_answer_and_the_line_says_what_was_not_read() -> None:
    session, model = Session(), SpelledModel(reads(6))
    response = respond(model, session, compaction={"above_tokens": 60, "keep_turns": 1})
    [first, *_] = session.stats["compactions"]
    assert first["how"] == "summary" and first["until"] < first["at"] and first["characters"] > 0
    texts = [item for item in response["output"] if item["type"] == "message"]
    assert [item["content"][0]["text"] for item in texts] == ["done reading"]
    after = model.calls[-1]["input"]
    assert after[1]["content"][0]["text"].startswith("Summary of the conversation so far:\nup to")
    line = {
        **{"responses_create_params": {"input": [QUESTION]}, "response": response, "reward": 1.0},
        "agent_ref": {"name": "agent"},
        "_ng_task_index": 0,
        "_ng_rollout_index": 0,
        "rollout": {"task_id": "0" * 16, "scope": "", "rollout_index": 0, **session.stats},
    }
    with pytest.raises(Unfit, match="its conversation was shortened"):
        read_conversation(rollout_of(line))


def test_old_tool_outputs_are_left_out_with_a_note() -> None:
    session, model = Session(), SpelledModel(reads(6))
    compaction = {"how": "drop_tool_outputs", "above_tokens": 60, "keep_turns": 2}
    response = respond(model, session, compaction=compaction)
    outputs = [
        item["output"]
        for item in model.calls[-1]["input"]
        if item.get("type") == "function_call_output"
    ]
    assert outputs[0].startswith("[left out: ") and not outputs[-1].startswith("[left out")
    whole = [item["output"] for item in response["output"] if "output" in item]
    assert len(whole) == 6 and not any(each.startswith("[left") for each in whole)
    chains = len(session.stats["compactions"]) + 1
    assert chains > 1 and len(sequences(response["output"])) == chains
    assert sum(each["characters"] for each in session.stats["compactions"]) > 0


def test_a_policy_that_writes_no_summary_goes_on_and_the_line_says_so() -> None:
    session, answer = Session(), reads(6)

    def stubborn(params: JsonObject) -> Any:
        said = answer(params)
        return call_response(("read", '{"page": 1}')) if str(said).startswith("up to") else said

    response = respond(SpelledModel(stubborn), session, compaction={"above_tokens": 60})
    assert all(each["failed"] for each in session.stats["compactions"])
    assert len(sequences(response["output"])) == 1


def test_compaction_needs_the_usage_of_each_answer() -> None:
    def bare(params: JsonObject) -> JsonObject:
        return {**call_response(("read", '{"page": 1}')), "usage": None}

    with pytest.raises(ModelError, match="compaction needs"):
        respond(ScriptedModel(bare), Session(), compaction={"above_tokens": 60})


@pytest.mark.parametrize(
    ("limits", "num_turns"),
    [({"calls": 3}, 3), ({"tokens": 60}, 3), ({"seconds": 2.5}, 3), ({"calls": 99}, 6)],
)
def test_past_a_limit_a_rollout_ends_incomplete(limits: JsonObject, num_turns: int) -> None:
    spelled = SpelledModel(reads(5))

    class Slow(ScriptedModel):
        def __init__(self) -> None:
            super().__init__(lambda params: "", delay_s=1)

        async def responses(self, params: JsonObject) -> JsonObject:
            await super().responses(params)
            return await spelled.responses(params)

    session = Session()
    response = respond(Slow(), session, rollout_limits=limits)
    assert session.stats["num_turns"] == num_turns
    if num_turns < 6:
        assert session.stats["finish_reason"] == "rollout_limit"
        assert response["status"] == "incomplete"
        assert response["incomplete_details"] == {"reason": "rollout_limit"}


def test_a_limit_of_dollars_needs_prices() -> None:
    class Unpriced(ScriptedModel):
        is_own = False

    with pytest.raises(ModelError, match=r"rollout_limits\.cost_usd: the model server"):
        respond(Unpriced(reads(3)), Session(), rollout_limits={"cost_usd": 1.0})


def test_turns_that_were_stored_count_for_the_limits() -> None:
    stored: list[JsonObject] = []

    async def report(turn: JsonObject) -> None:
        if RETURNED not in turn:
            stored.append({**turn, "cost_usd": 0.5})

    first = Session()
    first.turn_log = TurnLog([], report)
    respond(ScriptedModel(reads(8)), first)
    assert len(stored) >= 3
    again = Session()
    again.turn_log = TurnLog(stored[:3], report)
    respond(ScriptedModel([]), again, rollout_limits={"cost_usd": 1.2})
    assert again.stats["resumed_turns"] == 3 == again.stats["num_turns"]
    assert again.stats["finish_reason"] == "rollout_limit"


class Planning(Agent):
    """Asks a planner, and then the worker."""

    async def respond(self, params: JsonObject) -> JsonObject:
        turns, asked = self.begin_turns(), input_items(params)
        plan = await turns.ask({"input": asked}, model="planner", at=0)
        output = plan["output"]
        work = await turns.ask({"input": asked + output}, at=len(output))
        return turns.finish(work, output + work["output"], "stop")


def test_each_turn_says_which_of_several_models_was_asked() -> None:
    plan = make_response("large", [message_item("first add")], {"total_tokens": 3})
    session = Session()
    planner = {"planner": lambda peers, name: ScriptedModel([plan], peers, name)}
    response = respond(ScriptedModel(["it is 3"]), session, Planning, planner)
    assert [item["content"][0]["text"] for item in response["output"]] == ["first add", "it is 3"]
    turns = read_turns(session.stats["turns"])
    assert [each.to for each in turns] == [1, 2] and len({each.model for each in turns}) == 2
    assert "by" not in session.stats["turns"]  # both are the policy
    assert response["usage"]["total_tokens"] == 3 + 4
