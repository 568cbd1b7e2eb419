"""What programs do to their conversations, case by case: the chains, what of each is trained on,
and why it begins. A token is a letter here, so the expected rows can be read.

A call is a list of words. `S` is a system prompt and `a` a user's text. `r1` is the reply to the
first call, `o1` the output of its tool, and `=x` a reply that the program made up. `r1'` differs
in its text, `r1~` in white space at its end, `r1^` in the spelling of its arguments. `r1-` lacks a
call, and `r1?` its thought. `|` separates calls, and `&` calls that are made at once. In front
stand the API (`@messages`, or `@responses`), and `!` if no tools are offered.

A row is what a trainer gets: why it begins, and the same words, where `[r1]` is sampled in it.
"""

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import orjson
import pytest
from token_model import END, TokenModel, write

from rollout_kit.api.testing import mount
from rollout_kit.responses import (
    Item,
    content_texts,
    function_call_item,
    message_item,
    reasoning_item,
)
from rollout_kit.serving.gateway.dialects import DIALECTS
from rollout_kit.serving.gateway.lanes import AGAIN, ANEW, BRANCH, EDITED, SHORTENED
from rollout_kit.serving.gateway.recorder import Recorder
from rollout_kit.session import Session, entered
from rollout_kit.trajectory import sequences
from rollout_kit.types import JsonObject

REASONS = {"again": AGAIN, "new": ANEW, "branch": BRANCH, "edited": EDITED, "shorter": SHORTENED}

PATHS = {
    "chat": "/v1/chat/completions",
    "messages": "/v1/messages",
    "responses": "/v1/responses",
}


@dataclass(frozen=True)
class Case:
    """`calling` are the replies that call a tool, `both` those that call two, `thinking` those with
    a thought. Rows are in the order of the response: the chain that was asked last is last."""

    calls: str
    rows: tuple[str, ...]
    num_side: int = 0
    calling: str = ""
    both: str = ""
    thinking: str = ""
    rule: Any = "other_system_without_tools"
    is_alike: bool = False
    """Whether the model always says the same."""

    def reply(self, number: int) -> list[Item]:
        name, items = str(number), []
        if name in self.thinking:
            items.append(reasoning_item(f"t{name}"))
        if name in self.calling + self.both:
            items.append(function_call_item("run", json.dumps({"n": number, "m": 0}), f"c{name}"))
        if name in self.both:
            items.append(function_call_item("run", json.dumps({"n": -number}), f"d{name}"))
        if name not in self.calling + self.both:
            items.append(message_item("r" if self.is_alike else f"r{name}"))
        return items


CASES = {
    # turns that continue each other
    "one call": Case("S a", ("S a [r1]",)),
    "a second turn": Case("S a | S a r1 b", ("S a [r1] b [r2]",)),
    "four turns": Case(
        "S a | S a r1 b | S a r1 b r2 c | S a r1 b r2 c r3 d",
        ("S a [r1] b [r2] c [r3] d [r4]",),
    ),
    "no system prompt": Case("a | a r1 b", ("a [r1] b [r2]",)),
    "two texts at once": Case("S a b | S a b r1 c d", ("S a b [r1] c d [r2]",)),
    "a made-up example before": Case("S x =y a | S x =y a r1 b", ("S x =y a [r1] b [r2]",)),
    "a tool": Case("S a | S a r1 o1", ("S a [r1] o1 [r2]",), calling="1"),
    "three tools in a row": Case(
        "S a | S a r1 o1 | S a r1 o1 r2 o2 | S a r1 o1 r2 o2 r3 o3",
        ("S a [r1] o1 [r2] o2 [r3] o3 [r4]",),
        calling="123",
    ),
    "two calls of tools in one reply": Case(
        "S a | S a r1 o1 p1", ("S a [r1] o1 p1 [r2]",), both="1"
    ),
    "their outputs the other way round": Case(
        "S a | S a r1 p1 o1", ("S a [r1] p1 o1 [r2]",), both="1"
    ),
    "only one of two outputs": Case("S a | S a r1 o1", ("S a [r1] o1 [r2]",), both="1"),
    "a reminder after the output": Case("S a | S a r1 o1 b", ("S a [r1] o1 b [r2]",), calling="1"),
    "a thought is left out": Case(
        "S a | S a r1? b | S a r1? b r2? c", ("S a [r1] b [r2] c [r3]",), thinking="12"
    ),
    "a thought is sent back": Case(
        "@responses S a | @responses S a r1 b", ("S a [r1] b [r2]",), thinking="1"
    ),
    "a thought before a call": Case(
        "@messages S a | @messages S a r1? o1", ("S a [r1] o1 [r2]",), thinking="1", calling="1"
    ),
    "white space at the end of a reply": Case("S a | S a r1~ b", ("S a [r1] b [r2]",)),
    "arguments in another spelling": Case("S a | S a r1^ o1", ("S a [r1] o1 [r2]",), calling="1"),
    "a reply is added that the model did not make": Case(
        "S a | S a r1 b =x c", ("S a [r1] b =x c [r2]",)
    ),
    # the same once more
    "the same request": Case("S a | S a", ("S a [r1]", "again: S a [r2]")),
    "the same request three times": Case(
        "S a | S a | S a", ("S a [r1]", "again: S a [r2]", "again: S a [r3]")
    ),
    "a later turn once more": Case(
        "S a | S a r1 b | S a r1 b", ("S a [r1] b [r2]", "again: S a r1 b [r3]")
    ),
    "the second sample is continued": Case(
        "S a | S a | S a r2 b", ("S a [r1]", "again: S a [r2] b [r3]")
    ),
    "the first sample is continued": Case(
        "S a | S a | S a r1 b", ("again: S a [r2]", "S a [r1] b [r3]")
    ),
    "both samples are continued": Case(
        "S a | S a | S a r1 b | S a r2 b", ("S a [r1] b [r3]", "again: S a [r2] b [r4]")
    ),
    "the same request in another API": Case(
        "S a | @messages S a | @responses S a",
        ("S a [r1]", "again: S a [r2]", "again: S a [r3]"),
    ),
    "the same request without tools": Case(
        "S a | ! S a", ("S a [r1]", "again: S a [r2]"), rule="none"
    ),
    "the same request at once": Case("S a & S a", ("S a [r1]", "again: S a [r2]")),
    "a later turn twice at once": Case(
        "S a | S a r1 b & S a r1 b", ("S a [r1] b [r2]", "again: S a r1 b [r3]")
    ),
    "two samples that are the same": Case(
        "S a | S a | S a r2 b | S a r2 c | S a r2 b r3 d",
        ("S a [r1]", "branch: S a r2 c [r4]", "again: S a [r2] b [r3] d [r5]"),
        is_alike=True,
    ),
    # branches
    "two branches": Case("S a | S a r1 b | S a r1 c", ("S a [r1] b [r2]", "branch: S a r1 c [r3]")),
    "three branches at once": Case(
        "S a | S a r1 b & S a r1 c & S a r1 d",
        ("S a [r1] b [r2]", "branch: S a r1 c [r3]", "branch: S a r1 d [r4]"),
    ),
    "the older branch is continued": Case(
        "S a | S a r1 b | S a r1 c | S a r1 b r2 d",
        ("branch: S a r1 c [r3]", "S a [r1] b [r2] d [r4]"),
    ),
    "the newer branch is continued": Case(
        "S a | S a r1 b | S a r1 c | S a r1 c r3 d",
        ("S a [r1] b [r2]", "branch: S a r1 c [r3] d [r4]"),
    ),
    "a branch of a branch": Case(
        "S a | S a r1 b | S a r1 c | S a r1 c r3 d | S a r1 c r3 e",
        ("S a [r1] b [r2]", "branch: S a r1 c [r3] d [r4]", "branch: S a r1 c r3 e [r5]"),
    ),
    "back to the first turn": Case(
        "S a | S a r1 b | S a r1 b r2 c | S a r1 d",
        ("S a [r1] b [r2] c [r3]", "branch: S a r1 d [r4]"),
    ),
    "another output of the same tool": Case(
        "S a | S a r1 o1 | S a r1 o1'", ("S a [r1] o1 [r2]", "branch: S a r1 o1' [r3]"), calling="1"
    ),
    "two conversations at once": Case(
        "S a & S b | S a r1 c & S b r2 d",
        ("S a [r1] c [r3]", "new: S b [r2] d [r4]"),
    ),
    # sub-agents
    "a sub-agent": Case("S a | T b", ("S a [r1]", "new: T b [r2]")),
    "a sub-agent with the same prompt": Case("S a | S b", ("S a [r1]", "new: S b [r2]")),
    "a sub-agent with turns, and its answer": Case(
        "S a | T b | T b r2 o2 | S a r1 o1",
        ("new: T b [r2] o2 [r3]", "S a [r1] o1 [r4]"),
        calling="12",
    ),
    "two sub-agents at once": Case(
        "S a | T b & T c | S a r1 o1",
        ("new: T b [r2]", "new: T c [r3]", "S a [r1] o1 [r4]"),
        calling="1",
    ),
    "a sub-agent of a sub-agent": Case(
        "S a | T b | U c | T b r2 o2 | S a r1 o1",
        ("new: U c [r3]", "new: T b [r2] o2 [r4]", "S a [r1] o1 [r5]"),
        calling="12",
    ),
    "a sub-agent with the whole conversation": Case(
        "S a | S a r1 b | S a r1 b r2 c | S a r1 b r2 d",
        ("S a [r1] b [r2] c [r3]", "branch: S a r1 b r2 d [r4]"),
    ),
    "a sub-agent in another API": Case(
        "S a | @messages T b | @messages T b r2 c | S a r1 d",
        ("new: T b [r2] c [r3]", "S a [r1] d [r4]"),
    ),
    # compaction
    "a compaction that keeps the task": Case(
        "S a | S a r1 b | S a x", ("S a [r1] b [r2]", "shorter: S a x [r3]")
    ),
    "a compaction of everything": Case(
        "S a | S a r1 b | S x", ("S a [r1] b [r2]", "new: S x [r3]")
    ),
    "a compaction that is continued": Case(
        "S a | S a r1 b | S x | S x r3 c", ("S a [r1] b [r2]", "new: S x [r3] c [r4]")
    ),
    "a summary by the model": Case(
        "S a | S a r1 b | S a r1 b r2 summarize | S a summary | S a summary r4 c",
        ("S a [r1] b [r2] summarize [r3]", "shorter: S a summary [r4] c [r5]"),
    ),
    "two compactions": Case(
        "S a | S a x | S a y", ("S a [r1]", "shorter: S a x [r2]", "shorter: S a y [r3]")
    ),
    "the oldest turn is left out": Case(
        "S a | S a r1 b | S b r2 c", ("S a [r1] b [r2]", "new: S b =r2 c [r3]")
    ),
    "a turn in the middle is left out": Case(
        "S a | S a r1 b | S a r1 b r2 c | S a r1 c r3 d",
        ("S a [r1] b [r2] c [r3]", "edited: S a r1 c =r3 d [r4]"),
    ),
    "a reply is left out": Case("S a | S a b", ("S a [r1]", "shorter: S a b [r2]")),
    "a call and its output are left out": Case(
        "S a | S a r1 o1 | S a b", ("S a [r1] o1 [r2]", "shorter: S a b [r3]"), calling="1"
    ),
    # edited history
    "the last reply is changed": Case("S a | S a r1' b", ("S a [r1]", "edited: S a r1' b [r2]")),
    "an earlier reply is changed": Case(
        "S a | S a r1 b | S a r1' b r2 c", ("S a [r1] b [r2]", "edited: S a r1' b =r2 c [r3]")
    ),
    "a changed conversation is continued": Case(
        "S a | S a r1' b | S a r1' b r2 c", ("S a [r1]", "edited: S a r1' b [r2] c [r3]")
    ),
    "an old output is pruned": Case(
        "S a | S a r1 o1 | S a r1 o1' r2 b",
        ("S a [r1] o1 [r2]", "edited: S a r1 o1' =r2 b [r3]"),
        calling="1",
    ),
    "a call is taken out of a reply": Case(
        "S a | S a r1- o1", ("S a [r1]", "edited: S a r1- o1 [r2]"), both="1"
    ),
    "the task is changed": Case(
        "S a | S a r1 b | S a' r1 b r2 c", ("S a [r1] b [r2]", "new: S a' =r1 b =r2 c [r3]")
    ),
    "the system prompt is changed": Case(
        "S a | S a r1 b | S' a r1 b r2 c", ("S a [r1] b [r2]", "new: S' a =r1 b =r2 c [r3]")
    ),
    # calls that are no turns
    "a title": Case("S a | ! T a | S a r1 b", ("S a [r1] b [r3]",), 1),
    "a title first": Case("! T a | S a | S a r2 b", ("S a [r2] b [r3]",), 1),
    "a title with turns": Case("S a | ! T a | ! T a r2 b | S a r1 c", ("S a [r1] c [r4]",), 2),
    "a title at the same time": Case("S a & ! T a | S a r1 b", ("S a [r1] b [r3]",), 1),
    "a summary without tools is a turn": Case("S a | ! S a r1 b", ("S a [r1] b [r2]",)),
    "no call has tools": Case("! S a | ! T b", ("S a [r1]", "new: T b [r2]")),
    "all without tools": Case("S a | ! S a r1 b", ("S a [r1]",), 1, rule="without_tools"),
    "no side calls": Case("S a | ! T a", ("S a [r1]", "new: T a [r2]"), rule="none"),
    "those with a text": Case("S a | T a | S a r1 b", ("S a [r1] b [r3]",), 1, rule=["T"]),
    "a title between chains": Case(
        "S a | ! T a | U b | ! T b | S a r1 c", ("new: U b [r3]", "S a [r1] c [r5]"), 2
    ),
    # several APIs in one conversation
    "chat and then responses": Case("S a | @responses S a r1 b", ("S a [r1] b [r2]",)),
    "chat and then messages": Case(
        "S a | @messages S a r1 o1 | S a r1 o1 r2 b", ("S a [r1] o1 [r2] b [r3]",), calling="1"
    ),
    "all three in turn": Case(
        "@responses S a | @messages S a r1 b | S a r1 b r2 c | @responses S a r1 b r2 c r3 d",
        ("S a [r1] b [r2] c [r3] d [r4]",),
    ),
    "branches in three APIs": Case(
        "S a | S a r1 b & @messages S a r1 c & @responses S a r1 d",
        ("S a [r1] b [r2]", "branch: S a r1 c [r3]", "branch: S a r1 d [r4]"),
    ),
}


def read_item(word: str, case: Case) -> list[Item]:
    """The items that a word stands for, in the form of the Responses API."""
    if word[0] == "=":
        return [{"role": "assistant", "content": word[1:]}]
    if word[0].isupper():
        return [{"role": "system", "content": word}]
    if word[0] in "op" and word[1:2].isdigit():
        call_id = {"o": "c", "p": "d"}[word[0]] + word[1]
        return [{"type": "function_call_output", "call_id": call_id, "output": word}]
    if word[0] == "r" and word[1:2].isdigit():
        return [each for item in case.reply(int(word[1])) for each in change(item, word[2:])]
    return [{"role": "user", "content": word}]


def change(item: Item, how: str) -> list[Item]:
    kind = item["type"]
    if kind == "message":
        added = {"'": "'", "~": " \n"}.get(how, "")
        return [{"role": "assistant", "content": "".join(content_texts(item["content"])) + added}]
    if kind == "reasoning":
        return [] if how == "?" else [item]
    if how == "-" and item["call_id"].startswith("d"):
        return []
    if how == "^":
        backwards = dict(reversed(json.loads(item["arguments"]).items()))
        return [{**item, "arguments": json.dumps(backwards, indent=1)}]
    return [item]


def write_request(api: str, items: list[Item]) -> JsonObject:
    """The conversation as programs of an API send it."""
    systems = [item["content"] for item in items if item.get("role") == "system"]
    others = [item for item in items if item.get("role") != "system"]
    if api == "responses":
        return {"instructions": systems[0] if systems else None, "input": others}
    messages: list[JsonObject] = []
    for item in others:
        role, part = write_part(api, item)
        if not part:
            continue
        if api == "messages" and messages and messages[-1]["role"] == role != "user":
            messages[-1]["content"] += part
        elif api == "messages":
            messages.append({"role": role, "content": part})
        elif messages and role == "assistant" and "tool_calls" in messages[-1]:
            messages[-1]["tool_calls"] += part["tool_calls"]
        else:
            messages.append({"role": role, **part})
    if api == "messages":
        return {
            "messages": messages,
            "max_tokens": 9,
            **({"system": systems[0]} if systems else {}),
        }
    return {"messages": [*({"role": "system", "content": each} for each in systems), *messages]}


def write_part(api: str, item: Item) -> tuple[str, Any]:
    kind, is_chat = item.get("type", "message"), api == "chat"
    if kind == "reasoning":
        return "assistant", None
    if kind == "function_call" and is_chat:
        function = {"name": item["name"], "arguments": item["arguments"]}
        call = {"id": item["call_id"], "type": "function", "function": function}
        return "assistant", {"content": None, "tool_calls": [call]}
    if kind == "function_call":
        used = {"id": item["call_id"], "name": item["name"]}
        return "assistant", [{"type": "tool_use", **used, "input": json.loads(item["arguments"])}]
    if kind == "function_call_output" and is_chat:
        return "tool", {"tool_call_id": item["call_id"], "content": item["output"]}
    if kind == "function_call_output":
        result = {"tool_use_id": item["call_id"], "content": item["output"]}
        return "user", [{"type": "tool_result", **result}]
    text = item["content"]
    return item["role"], {"content": text} if is_chat else [{"type": "text", "text": text}]


def read_call(text: str, case: Case) -> tuple[str, bytes]:
    """The path and the body of a call."""
    words = text.split()
    api = words.pop(0)[1:] if words[0][0] == "@" else "chat"
    has_tools = words[0] != "!"
    items = [item for word in words[not has_tools :] for item in read_item(word, case)]
    schema = {"type": "object", "properties": {}}
    tool = {
        "chat": {"type": "function", "function": {"name": "run", "parameters": schema}},
        "messages": {"name": "run", "input_schema": schema},
        "responses": {"type": "function", "name": "run", "parameters": schema, "strict": None},
    }[api]
    body = {"model": "m", **write_request(api, items), **({"tools": [tool]} if has_tools else {})}
    return PATHS[api], orjson.dumps(body)


def read_row(text: str, case: Case) -> tuple[str, list[int], list[int]]:
    """The reason, the tokens and the mask that are expected."""
    begin, colon, rest = text.partition(": ")
    tokens: list[int] = []
    mask: list[int] = []
    for word in (rest if colon else text).split():
        said = word.strip("[]")
        items, end = read_item(said, case), []
        if said[0] == "r" and said[1:].isdigit():
            items, end = case.reply(int(said[1:])), [END]
        new = [*(ord(letter) for item in items for letter in write(item)), *end]
        tokens += new
        mask += [int(word != said)] * len(new)
    return REASONS[begin] if colon else "", tokens, mask


@pytest.mark.parametrize("name", CASES)
def test_a_built_case_gives_the_rows_that_are_expected(name: str) -> None:
    case = CASES[name]

    async def main() -> tuple[Recorder, TokenModel, JsonObject]:
        model = TokenModel(lambda params: case.reply(len(model.log) + 1))
        async with mount({"policy_model": lambda peers, name: model}) as peers:
            with entered(Session()):
                recorder = Recorder(peers, "policy_model")
            for together in case.calls.split(" | "):
                calls = [read_call(each, case) for each in together.split(" & ")]
                await asyncio.gather(
                    *(recorder.answer(DIALECTS[path], body) for path, body in calls)
                )
            return recorder, model, recorder.finish(case.rule, "letters", "stop")

    recorder, model, response = asyncio.run(main())
    about = recorder.session.stats["gateway"]
    expected = [read_row(row, case) for row in case.rows]
    found = sequences(response["output"])
    rows = [(each.token_ids, [*map(int, each.is_generated)]) for each in found]
    assert rows == [(tokens, mask) for _, tokens, mask in expected], show(found)
    chains = about.get("chains") or [{}]
    assert [each.get("why", "") for each in chains] == [why for why, _, _ in expected]
    assert about["side_calls"] == case.num_side
    # what the model was asked and has sampled, once each
    turns = sorted((prompt, turn.generation) for one in found for prompt, turn in one.pair_turns())
    assert len(turns) + case.num_side == len(model.log) == len(recorder.calls)
    assert all(turn in model.log for turn in turns)


def show(found: Any) -> str:
    return "\n".join("".join(map(chr, each.token_ids)) for each in found)
