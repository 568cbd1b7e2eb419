"""Responses as OpenAI's client and the standard Open Responses define them, for clients of others.

Between our own servers, and in stored lines, a response has only what says something: `complete`
adds the fields that the standard requires besides. Clients know no provider data. They get it in
the `encrypted_content` of reasoning items, which they send back.
"""

import time
from collections.abc import Iterator, Mapping
from typing import Any

from ...responses import (
    ENCRYPTED,
    PROVIDER_DATA,
    Item,
    as_object,
    is_of_model,
    new_id,
    output_items,
    sum_usage,
)
from ...types import JsonObject
from .provider_data import SEALED, seal, seal_thought, unpack, unseal

DEFAULTS: JsonObject = {
    "completed_at": None,
    "error": None,
    "instructions": None,
    "previous_response_id": None,
    "truncation": "disabled",
    "temperature": 1.0,
    "top_p": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "top_logprobs": 0,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "store": False,
    "background": False,
    "service_tier": "default",
    "metadata": {},
    "user": None,
    "safety_identifier": None,
    "prompt_cache_key": None,
    "tool_choice": "auto",
    "tools": [],
    "parallel_tool_calls": True,
    "incomplete_details": None,
}
"""Required fields, with the values that they have in a request that does not set them."""

NOT_ECHOED = frozenset({"completed_at", "error", "store", "background", "incomplete_details"})
"""Fields that do not repeat the request."""

TIERS = frozenset({"auto", "default", "flex", "scale", "priority", "fast", "ultrafast"})

LONG_WRITES = "cache_write_1h_tokens"

NO_TEXT: JsonObject = {"format": {"type": "text"}}
NO_REASONING: JsonObject = {"effort": None, "summary": None}
NO_FUNCTION: JsonObject = {"description": None, "parameters": None, "strict": None}


def complete(response: JsonObject, params: Mapping[str, Any]) -> JsonObject:
    """A response to `params` with every required field."""
    echoed = {
        name: params[name]
        for name in DEFAULTS
        if params.get(name) is not None and name not in NOT_ECHOED
    }
    own = {
        name: value
        for name, value in response.items()
        if value is not None or DEFAULTS.get(name) is None
    }
    whole = {"id": new_id("resp"), "object": "response", "created_at": int(time.time())}
    whole |= {"status": "completed", "model": "", **DEFAULTS, **echoed, **own}
    if whole["status"] == "completed" and not whole["completed_at"]:
        whole["completed_at"] = max(int(time.time()), int(whole["created_at"]))
    if whole["service_tier"] not in TIERS:  # other providers have tiers of their own
        whole["service_tier"] = "default"
    whole["text"] = {**NO_TEXT, **as_object(params.get("text")), **as_object(response.get("text"))}
    thought = {**as_object(params.get("reasoning")), **as_object(response.get("reasoning"))}
    whole["reasoning"] = {**NO_REASONING, **thought}
    whole["tools"] = [
        {**NO_FUNCTION, **tool} if as_object(tool).get("type") == "function" else tool
        for tool in whole["tools"]
    ]
    whole["usage"] = usage = sum_usage([response.get("usage")])
    usage["input_tokens_details"].pop(LONG_WRITES, None)  # only our prices know it
    whole["output"] = [_complete_item(item) for item in seal_items(output_items(response))]
    return whole


def seal_items(output: list[Item]) -> list[Item]:
    """The items of a response for a client that knows no provider data."""
    made = [
        {
            **{name: value for name, value in item.items() if name != PROVIDER_DATA},
            **({ENCRYPTED: own} if (own := seal_thought(item)) else {}),
        }
        for item in output
    ]
    if sealed := seal(output, with_thoughts=False):
        fitting = (item for item in made if item.get("type") == "reasoning")
        carrier = next((item for item in fitting if not item.get(ENCRYPTED)), None)
        if carrier is None:
            carrier = {"type": "reasoning", "id": new_id("rs"), "summary": []}
            made.insert(0, carrier)
        carrier[ENCRYPTED] = sealed
    return made


def may_be_sealed(raw: bytes) -> bool:
    """Whether JSON may hold what `seal_items` has put in."""
    return SEALED.encode() in raw


def unseal_items(items: Any) -> Any:
    """The items of a request with the provider data that its client has sent back."""
    if not isinstance(items, list):
        return items
    found: list[Any] = []
    for turn in _split_turns(items):
        sealed = [unseal(each.get(ENCRYPTED)) if isinstance(each, dict) else {} for each in turn]
        if any(sealed):
            pairs = zip(turn, sealed, strict=True)
            own = [made for item, each in pairs if (made := _open(item, each)) is not None]
            turn = unpack(own, [each for each in sealed if "item" not in each])
        found += turn
    return found


def _split_turns(items: list[Any]) -> Iterator[list[Any]]:
    """Consecutive items of the assistant together, each other item alone."""
    turn: list[Any] = []
    for item in items:
        if is_of_model(as_object(item)):
            turn.append(item)
            continue
        if turn:
            yield turn
        turn = []
        yield [item]
    if turn:
        yield turn


def _open(item: Item, sealed: JsonObject) -> Item | None:
    """The item without what was sealed; None if it was made to carry that."""
    if not sealed:
        return item
    if isinstance(own := sealed.get("item"), dict):
        return own
    bare = {name: value for name, value in item.items() if name != ENCRYPTED}
    return bare if item.get("summary") or item.get("content") else None


def _complete_item(item: Item) -> Item:
    match item.get("type"):
        case "message":
            given = item.get("content")
            parts = [{"type": "output_text", "text": given}] if isinstance(given, str) else given
            head = {"id": new_id("msg"), "role": "assistant", "status": "completed"}
            return {**head, **item, "content": [_complete_part(part) for part in parts or ()]}
        case "function_call":
            return {"id": new_id("fc"), "call_id": new_id("call"), "status": "completed", **item}
        case "reasoning":
            return {"id": new_id("rs"), "summary": [], **item}
        case _:
            return item


def _complete_part(part: Any) -> Any:
    if as_object(part).get("type") != "output_text":
        return part
    log_probs = [
        {**each, "bytes": each.get("bytes") or [], "top_logprobs": each.get("top_logprobs") or []}
        for each in part.get("logprobs") or ()
    ]
    return {"text": "", **part, "annotations": part.get("annotations") or [], "logprobs": log_probs}
