"""LLaMA-Factory's ShareGPT form. Its loader drops what does not alternate between the two sides, so
that is `Unfit` here, where the report names it."""

import json
from collections.abc import Sequence

from ...types import JsonObject
from .conversation import Conversation, Unfit, text_of
from .preferences import Pair
from .trainers import Context

ASKING = ("human", "observation")


def llamafactory_sft(each: Conversation, context: Context) -> JsonObject:
    return _conversation(each.messages, each)


def llamafactory_kto(each: Conversation, context: Context) -> JsonObject:
    return {**_conversation(each.messages, each), "kto_tag": context.is_right()}


def llamafactory_dpo(pair: Pair) -> JsonObject:
    return {
        **_conversation(pair.prompt, pair.chosen, is_prompt=True),
        "chosen": _turn(pair.chosen.answer),
        "rejected": _turn(pair.rejected.answer),
    }


def _conversation(
    messages: Sequence[JsonObject], each: Conversation, *, is_prompt: bool = False
) -> JsonObject:
    system = ""
    if messages[0]["role"] in ("system", "developer"):
        system, messages = messages[0]["content"], messages[1:]
    turns: list[JsonObject] = []
    for message in messages:
        turn = _turn(message)
        if turn["from"] == "observation" and turns and turns[-1]["from"] == "observation":
            turns[-1]["value"] += "\n" + turn["value"]  # outputs of parallel calls
        else:
            turns.append(turn)
    if any((turn["from"] in ASKING) == bool(at % 2) for at, turn in enumerate(turns)):
        raise Unfit("its turns do not alternate")
    if len(turns) % 2 != is_prompt:
        raise Unfit("its last turn is not the model's" if turns else "it has no turns")
    tools = [tool["function"] for tool in each.tools]
    return {"conversations": turns, "system": system, "tools": text_of(tools) if tools else ""}


def _turn(message: JsonObject) -> JsonObject:
    thought = message.get("reasoning_content")
    before = f"<think>\n{thought}\n</think>\n\n" if thought else ""
    match message["role"]:
        case "user":
            return {"from": "human", "value": message["content"]}
        case "tool":
            return {"from": "observation", "value": message["content"]}
        case "assistant" if "tool_calls" in message:
            if message["content"]:
                raise Unfit("it has text beside a tool call")
            calls = [_call(call["function"]) for call in message["tool_calls"]]
            value = json.dumps(calls if len(calls) > 1 else calls[0], ensure_ascii=False)
            return {"from": "function_call", "value": before + value}
        case "assistant":
            return {"from": "gpt", "value": before + message["content"]}
        case role:
            raise Unfit(f"it has a {role} message that is not the first")


def _call(function: JsonObject) -> JsonObject:
    arguments = function["arguments"]
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except ValueError:
            raise Unfit("the arguments of a tool call are not JSON") from None
    return {"name": function["name"], "arguments": arguments}


def dataset_entry(file_name: str, columns: Sequence[str]) -> JsonObject:
    """The entry of `dataset_info.json` for a file with these columns."""
    named = {"messages": "conversations", "system": "system", "tools": "tools"}
    named |= {name: name for name in ("chosen", "rejected", "kto_tag") if name in columns}
    entry: JsonObject = {"file_name": file_name, "formatting": "sharegpt", "columns": named}
    return entry | ({"ranking": True} if "chosen" in columns else {})
